"""The records handed from stage to stage, importable by everyone: traces, analyses, options, errors."""
