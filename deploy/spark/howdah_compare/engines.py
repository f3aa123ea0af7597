"""The engines that execute executions.sql: Spark, and DuckDB on one machine."""

import os
import pkgutil
import sys
from pathlib import Path

from . import query
from .runs import RunError

# Rows of a file and files of a part, in the order of a run's rows: see `place` in executions.sql.
FILE = 1 << 20
PART = 1 << 44
PREFERENCE = 1 << 20

STEPS = [step for step in pkgutil.get_data(__package__, "executions.sql").decode().split(";\n") if step.strip()]


class SparkEngine:
    """Reads whatever Spark reads: folders, `s3a://`, `gs://`, `abfss://`, `hdfs://`."""

    OUTCOMES = """kind string, fingerprint string, due_us bigint, sent_us bigint, service_us bigint, rows bigint,
        disposition string, sqlstate string, error string"""
    STATEMENTS = "fingerprint string, query string, user string, database string"
    # Spark's integers wrap, as the generator needs it.
    FUNCTIONS = (
        """create or replace temporary function howdah_bucket(us bigint) returns bigint
           return (greatest(length(bin(us)) - 7, 0) << 6) + (us >> greatest(length(bin(us)) - 7, 0))""",
        """create or replace temporary function howdah_mix(z bigint, bits int, factor bigint) returns bigint
           return (z ^ shiftrightunsigned(z, bits)) * factor""",
        """create or replace temporary function howdah_random(fingerprint string, number bigint) returns bigint
           return howdah_mix(howdah_mix(howdah_mix(
               cast(conv(fingerprint, 16, -10) as bigint) + (number - 4096) * -7046029254386353131L,
               30, -4658895280553007687L), 27, -7723592293110705685L), 31, 1L)""",
        # The upper 64 bits of the product of an unsigned number and one below 2^32.
        """create or replace temporary function howdah_scaled(z bigint, bound bigint) returns bigint
           return shiftrightunsigned(shiftrightunsigned(z, 32) * bound
               + shiftrightunsigned((z & 4294967295L) * bound, 32), 32)""",
        """create or replace temporary function howdah_slot(fingerprint string, number bigint) returns bigint
           return howdah_scaled(howdah_random(fingerprint, number), number)""",
    )

    def __init__(self):
        from pyspark import cloudpickle
        from pyspark.sql import SparkSession

        # Workers need not have the package.
        cloudpickle.register_pickle_by_value(sys.modules[__package__])
        self.spark = SparkSession.builder.appName("howdah compare").getOrCreate()
        self.spark.conf.set("spark.sql.ansi.enabled", "false")

    def manifests(self, path):
        """The paths and texts of the manifests in a folder and below it."""
        reader = self.spark.read.format("text").option("wholetext", "true").option("recursiveFileLookup", "true")
        found = reader.option("pathGlobFilter", "{run,machine}.json").load(path)
        return [(row[0], row[1]) for row in found.select("_metadata.file_path", "value").collect()]

    def load(self, runs):
        """Defines the views. `runs` are pairs of path and parts, and the preference of the run's texts."""
        parts = [
            (run, part, folder, preference * PREFERENCE + part)
            for run, (_, parts, preference) in enumerate(runs)
            for part, (folder, _, _) in enumerate(parts)
        ]
        columns = "run int, part int, folder string, preference bigint"
        self.spark.createDataFrame(parts, columns).createOrReplaceTempView("parts")
        self.read(runs, self.OUTCOMES, "outcomes").createOrReplaceTempView("outcome_rows")
        self.read(runs, self.STATEMENTS, "statements").createOrReplaceTempView("statement_rows")
        self.spark.sql(
            f"""create or replace temporary view outcomes as
            select /*+ broadcast(parts) */ run, part, part * {PART}L + file * {FILE}L + row_index as place,
                   kind, fingerprint, due_us, sent_us, service_us, `rows` as row_count, disposition, sqlstate, error
            from outcome_rows join parts using (run, folder)"""
        )
        self.spark.sql(
            """create or replace temporary view statements as
            select /*+ broadcast(parts) */ run, part, preference, fingerprint, query, `user` as user_name,
                   `database` as database_name
            from statement_rows join parts using (run, folder)"""
        )
        if int(self.spark.version.split(".")[0]) >= 4:
            for function in self.FUNCTIONS:
                self.spark.sql(function)
        else:
            self.spark.udf.register("howdah_bucket", query.bucket, "bigint")
            self.spark.udf.register("howdah_slot", query.slot, "bigint")
        for step in STEPS:
            self.spark.sql(step)

    def read(self, runs, schema, name):
        """The rows of a table of all runs, with the folder, number and row of their file."""
        tables = []
        for run, (path, _, _) in enumerate(runs):
            reader = self.spark.read.schema(schema).option("recursiveFileLookup", "true")
            table = reader.option("pathGlobFilter", f"{name}-*.parquet").parquet(path)
            tables.append(
                table.selectExpr(
                    f"{run} as run",
                    "regexp_replace(_metadata.file_path, '/[^/]*$', '') as folder",
                    "cast(regexp_extract(_metadata.file_name, '-([0-9]+)[.]', 1) as bigint) as file",
                    "_metadata.row_index as row_index",
                    "*",
                )
            )
        table = tables[0]
        for other in tables[1:]:
            table = table.unionAll(other)
        return table

    def rows(self, sql):
        return [tuple(row) for row in self.spark.sql(sql).collect()]

    def figures(self, plan):
        """The figures of all queries: computed where the rows are, and collected, one text for each query."""
        from pyspark.sql.functions import lit, udf

        columns = ("fingerprint", "totals", "buckets", "samples", "errors")
        table = self.spark.table("queries").select(udf(query.figures, "string", useArrow=False)(*columns, lit(plan)))
        return [row[0] for row in table.collect()]

    def write(self, text, uri):
        """Writes a text as the only file of a folder, which may be far from the driver."""
        table = self.spark.createDataFrame([(text,)], "value string").coalesce(1)
        table.write.mode("overwrite").text(uri)


class DuckDbEngine:
    """Reads local folders, for runs that fit one machine, and for tests."""

    FUNCTIONS = (
        """create or replace temporary macro howdah_bucket(us) as
           (greatest(length(bin(us)) - 7, 0) << 6) + (us >> greatest(length(bin(us)) - 7, 0))""",
        """create or replace temporary macro howdah_mix(z, bits, factor) as
           xor(z, z >> bits)::uhugeint * factor::uhugeint % 18446744073709551616::uhugeint""",
        """create or replace temporary macro howdah_random(fingerprint, number) as
           howdah_mix(howdah_mix(howdah_mix(
               ((('0x' || fingerprint)::ubigint::uhugeint
                   + (number - 4096)::uhugeint * 11400714819323198485::uhugeint)
                   % 18446744073709551616::uhugeint)::ubigint,
               30, 13787848793156543929)::ubigint, 27, 10723151780598845931)::ubigint, 31, 1)""",
        """create or replace temporary macro howdah_slot(fingerprint, number) as
           (howdah_random(fingerprint, number) * number::uhugeint >> 64)::bigint""",
    )

    def __init__(self):
        import duckdb

        self.connection = duckdb.connect()

    def manifests(self, path):
        found = [file for name in ("run.json", "machine.json") for file in Path(path).rglob(name)]
        return [(os.fspath(file.absolute()), file.read_text()) for file in found]

    def load(self, runs):
        run = self.connection.execute
        run("create table parts (run int, part int, folder text, preference bigint)")
        files = {"outcomes": [], "statements": []}
        for number, (_, parts, preference) in enumerate(runs):
            for part, (folder, _, _) in enumerate(parts):
                run("insert into parts values (?, ?, ?, ?)", [number, part, folder, preference * PREFERENCE + part])
                for name, found in files.items():
                    found += map(os.fspath, Path(folder).glob(f"{name}-*.parquet"))
        columns = "kind, fingerprint, due_us, sent_us, service_us, rows as row_count, disposition, sqlstate, error"
        for name, found in files.items():
            if not found:
                raise RunError(f"no run has a file {name}-000001.parquet")
            quoted = ", ".join("'" + file.replace("'", "''") + "'" for file in sorted(set(found)))
            rows = f"""(select *, regexp_replace(filename, '/[^/]*$', '') as folder,
                    regexp_extract(filename, '-([0-9]+)[.]parquet$', 1)::bigint as file
                from read_parquet([{quoted}], filename = true, file_row_number = true,
                                  union_by_name = true))"""
            if name == "outcomes":
                run(
                    f"""create temporary view outcomes as
                    select run, part, part * {PART}::bigint + file * {FILE} + file_row_number as place, {columns}
                    from {rows} join parts using (folder)"""
                )
            else:
                run(
                    f"""create temporary view statements as
                    select run, part, preference, fingerprint, query, "user" as user_name, "database" as database_name
                    from {rows} join parts using (folder)"""
                )
        for step in (*self.FUNCTIONS, *STEPS):
            run(step)

    def rows(self, sql):
        return self.connection.execute(sql).fetchall()

    def figures(self, plan):
        rows = self.connection.execute("select fingerprint, totals, buckets, samples, errors from queries")
        while row := rows.fetchone():
            yield query.figures(*row, plan)

    def write(self, _, uri):
        raise RunError(f"DuckDB writes to local files only, not to {uri}")


ENGINES = {"spark": SparkEngine, "duckdb": DuckDbEngine}
