"""The subcommands of `kqljax`, a file each: `add_options(parser)` and `run(options)`, which returns the exit code."""
