"""`embedline backfill`: every row of a data set embedded exactly once, into files that survive a kill at any moment."""
