"""Every table of facts (TOML) and the one loader that reads them."""
