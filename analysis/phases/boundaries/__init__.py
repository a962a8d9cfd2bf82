"""Where steps begin and end: from markers, from the order of kernels, from graph replays."""
