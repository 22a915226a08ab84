"""Writers that encoders share: the forms of rows, rows in an answer, and shapes of errors. Knows no route and no
body."""
