"""The verbs of the command line, one small module each: arguments in, printing out, no logic."""
