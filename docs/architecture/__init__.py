"""How Headway is built: pages for people, and the scripts that make of the code what the pages show of it."""
