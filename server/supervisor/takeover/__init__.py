"""`embedline serve --takeover`: a new server gets the listening sockets of the running one, which then drains."""
