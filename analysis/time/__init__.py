"""Where every nanosecond of the window went: busy by phase, copies, idle by cause; gaps, stalls, collectives, host."""
