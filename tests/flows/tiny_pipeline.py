"""The smallest pipeline file and contract that flows read; `tiny.yaml` beside `contract.yaml` and a folder of texts."""

PIPELINE = """\
pipeline: tiny
source: {format: text-files, uri: texts, include: ["**/*.txt"]}
contract: contract.yaml
training: {recipe: {model: {width: 16, depth: 1, heads: 2, hidden: 32}}, max_steps: 500}
registry: {model: tiny}
"""
CONTRACT = "name: tiny\nversion: 1.0.0\ndescription: none\ncolumns:\n  text: {type: string}\n"
