"""The commands of `embedline`: read flags, call, print. A file is imported when its command is called."""
