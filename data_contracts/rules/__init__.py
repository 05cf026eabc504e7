"""What a contract says: columns, constraints, rules over sets, and the flat list of checks it compiles to."""
