"""`embedline verify`: our rows against those of the library that the model was made with."""
