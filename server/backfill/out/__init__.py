"""Where the files of a job are: a folder of this machine, or an object store."""
