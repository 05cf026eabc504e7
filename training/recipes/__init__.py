"""The recipe protocol and the recipes that come with Headway.

A recipe knows of no rank, process, precision or checkpoint.
"""
