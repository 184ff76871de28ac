"""One module a verb of the command line; see `codinet.cli`."""
