"""Texts that share most of their words, found by MinHash: a pair is compared only where its signatures agree somewhere.

Source: Broder, "On the resemblance and containment of documents" (1997). A text's *shingles* are its runs of five
words. Its signature is the least hash of its shingles under each of 64 multipliers, in 16 bands of 4. Two texts of
similarity s agree in some band with probability 1 - (1 - s^4)^16: 0.9998 at 0.8, 0.64 at 0.5. Candidates are then
compared by the shingles themselves.
"""

from __future__ import annotations

import duckdb

NUM_BANDS = 16
ROWS_PER_BAND = 4
SHINGLE_WORDS = 5
MAX_BUCKET_TEXTS = 1000
"""A band that more texts share is boilerplate. Where it is most of them, they are like any of them; else they meet in
other bands."""
NUM_HEADS = 4
"""Texts of each split that stand for all of such a band."""
# Fixed and not random, so that every run finds the same candidates.
MULTIPLIERS = tuple(
    (0x9E3779B97F4A7C15 * (2 * place + 1)) % (1 << 64) | 1 for place in range(NUM_BANDS * ROWS_PER_BAND)
)


def similar_rows_sql(connection: duckdb.DuckDBPyConnection, texts: str, min_similarity: float) -> str:
    """Prepare the tables, and give the query that counts rows like a row of another split.

    Args:
        texts: a query of `split` and `text`, never null.
    """
    plain = "trim(regexp_replace(lower(text), '[^\\p{L}\\p{N}]+', ' ', 'g'))"
    # Each text of a split once: however often it is there, it is compared as one.
    distinct = f"SELECT split, {plain} AS plain, count(*) AS num_rows FROM ({texts}) GROUP BY ALL"
    # A text of fewer than five words has one shingle: all of it.
    last = f"greatest(1, len(words) - {SHINGLE_WORDS - 1})"
    shingles = f"list_distinct([hash(words[i : i + {SHINGLE_WORDS - 1}]) for i in range(1, {last} + 1)])"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE shingled AS SELECT row_number() OVER () AS id, split, num_rows, "
        f"{shingles} AS shingles FROM "
        f"(SELECT split, num_rows, regexp_split_to_array(plain, ' ') AS words FROM ({distinct}))"
    )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE banded AS {_bands_sql()}")
    shared = "SELECT band FROM banded GROUP BY band HAVING min(split) <> max(split) AND count(split)"
    first = "row_number() OVER (PARTITION BY band, split ORDER BY id)"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE heads AS SELECT id, split, band FROM banded "
        f"WHERE band IN ({shared} > {MAX_BUCKET_TEXTS}) QUALIFY {first} <= {NUM_HEADS}"
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE candidates AS SELECT a.id AS one, b.id AS other FROM banded a JOIN banded b "
        f"USING (band) WHERE a.split < b.split AND band IN ({shared} <= {MAX_BUCKET_TEXTS}) UNION "
        "SELECT a.id AS one, b.id AS other FROM heads a JOIN banded b USING (band) WHERE a.split <> b.split"
    )
    # Intersection over union, written without a division and without building the union.
    both = "len(list_intersect(a.shingles, b.shingles))"
    alike = (
        "SELECT one, other FROM candidates JOIN shingled a ON a.id = one JOIN shingled b ON b.id = other "
        f"WHERE {both} >= {min_similarity!r} * (len(a.shingles) + len(b.shingles) - {both})"
    )
    found = "SELECT one FROM alike UNION SELECT other FROM alike"
    return f"WITH alike AS ({alike}) SELECT coalesce(sum(num_rows), 0) FROM shingled WHERE id IN ({found})"


def _bands_sql() -> str:
    bands = []
    for band in range(NUM_BANDS):
        ours = MULTIPLIERS[band * ROWS_PER_BAND : (band + 1) * ROWS_PER_BAND]
        least = ", ".join(
            f"list_min([hash(xor(each, {multiplier}::UBIGINT)) for each in shingles])" for multiplier in ours
        )
        bands.append(f"hash({band}, {least})")
    return f"SELECT id, split, unnest([{', '.join(bands)}]) AS band FROM shingled"
