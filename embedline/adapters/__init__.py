"""The client behind the interfaces of other libraries, one file each. No other file imports these."""
