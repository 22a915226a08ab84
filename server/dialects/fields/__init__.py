"""The fields of bodies: each is declared once, with what it does, whose name it is, its limits and its reader."""
