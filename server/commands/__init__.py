"""One file or folder for each command of `embedline`: read flags, call, print. Imported when the command is called."""
