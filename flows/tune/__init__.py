"""`headway tune`: short trials of what moves no bit, on the machine at hand."""
