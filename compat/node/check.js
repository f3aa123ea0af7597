// node-postgres through the pooler: each client has a connection of its own.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

// Packages are not beside this file, but where the runner has put them.
const require = createRequire(`${process.env.NODE_PACKAGES ?? import.meta.dirname}/`);
const pg = require("pg");
const copy = require("pg-copy-streams");
const Cursor = require("pg-cursor");

const CLIENTS = Number(process.env.CLIENTS ?? 50);
const ROUNDS = 20;
const PAUSE = Number(process.env.PAUSE ?? 0);

async function client(me) {
  const name = `node-${me}`;
  const db = new pg.Client({ application_name: name });
  await db.connect();
  for (let round = 0; round < ROUNDS; round++) {
    const shown = await db.query("show application_name");
    assert.equal(shown.rows[0].application_name, name);
    // With a name it is prepared once and used from then on.
    const text = "select $1::int * 1000 + $2::int as sum";
    const sum = await db.query({ name: "sum", text, values: [me, round] });
    assert.equal(sum.rows[0].sum, me * 1000 + round);
    const echo = await db.query("select $1::text as echo", [name]);
    assert.equal(echo.rows[0].echo, name);
  }
  await transactions(db, me);
  await values(db, me);
  await typed(db, me);
  await preparedAgain(db, me);
  await cursors(db);
  await errors(db);
  await copyBothWays(db, me);
  await notifications(db, me);
  if (me % 10 === 0) await cancellation(db);
  await db.end();
}

async function transactions(db, me) {
  const insert = "insert into compat_node values ($1, $2)";
  await db.query("begin");
  await db.query(insert, [me, "lost"]);
  await db.query("rollback");
  await db.query("begin");
  for (let n = 0; n < 5; n++) await db.query(insert, [me, `kept ${n}`]);
  await db.query("savepoint s");
  await db.query(insert, [me, "lost in a savepoint"]);
  await db.query("rollback to s");
  await db.query("commit");
  const found = await db.query("select note from compat_node where client = $1 order by 1", [me]);
  assert.deepEqual(found.rows.map((row) => row.note), [0, 1, 2, 3, 4].map((n) => `kept ${n}`));
}

async function values(db, me) {
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  const rows = [
    [me, 1, `${me}`, 0.1 + me, "Ünï\tcode\n'\\", bytes, { a: [1, null, "ü"] }, [1, null, me], ["", "NULL", '"{}\\']],
    [me, 2, null, null, null, null, null, null, null],
    [me, 3, "0", Infinity, "", Buffer.alloc(0), {}, [], []],
  ];
  const text = "insert into compat_node_values values ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
  for (const values of rows) await db.query({ name: "values", text, values });
  const query = { text: "select * from compat_node_values where client = $1 order by n", values: [me] };
  const found = await db.query({ ...query, rowMode: "array" });
  assert.deepEqual(found.rows, rows);
  // Binary results, of which the driver understands some, and on some does not come to an end.
  const binary = { text: "select b from compat_node_values where client = $1", values: [me], binary: true };
  assert.equal((await db.query(binary)).rowCount, rows.length);
}

// Texts of unknown type, of which the server makes what the statement says.
async function typed(db, me) {
  const rows = [
    [me, 1, "12345678901234567890.000000001", new Date(Date.UTC(2026, 10, 20, 12, 30, 15, 123)), "2024-02-29",
      "00000000-0000-0000-0000-00000000000a"],
    [me, 2, "NaN", "-infinity", "0001-01-01 BC", null],
    [me, 3, "-0.0010", null, null, "ffffffff-ffff-ffff-ffff-ffffffffffff"],
  ];
  for (const row of rows) await db.query("insert into compat_node_typed values ($1, $2, $3, $4, $5, $6)", row);
  const expressions = [
    ["($3::int8 + $4::numeric)::text", 40000, "0.50"],
    ["($3::timestamptz - $4)::text", "2026-11-20 12:30:15.123+05:30", "1900-01-01 00:00:00Z"],
    ["($3::jsonb || $4::jsonb)::text", { a: "ü'\\" }, JSON.stringify([1])],
    ["(unnest($3::int[]) * $4)::text", [3, 1, me], 2],
    ["($3::text = any($4))::text", "10", ["9", "10"]],
    ["concat($3::text, '|', $4::text)", true, "ü\\'\n"],
  ];
  for (const [n, [expression, one, other]] of expressions.entries()) {
    const text = `insert into compat_node_typed (client, n, result) select $1::int, $2::int, ${expression}`;
    await db.query(text, [me, 100 + n, one, other]);
    await db.query({ name: `typed ${n}`, text, values: [me, 200 + n, one, other] });
  }
  // They are texts; a log, which has no types, looks the same for numbers.
  for (const [n, expression] of ["($3 < $4)::text", "greatest($3, $4)"].entries()) {
    await db.query(`insert into compat_node_untyped select $1::int, $2::int, ${expression}`, [me, n, 9, 10]);
  }
}

// A prepared statement whose result changes its type.
async function preparedAgain(db, me) {
  const table = `compat_node_own_${me}`;
  await db.query(`create table ${table} (a int, b text)`);
  await db.query(`insert into ${table} values (1, ''), (2, null)`);
  const select = { name: "select", text: `select * from ${table} where a = $1`, values: [1] };
  // In a transaction, since a pooler may have prepared it on another server connection, too.
  await db.query("begin");
  await db.query(select);
  await db.query(`alter table ${table} add c text default 'c'`);
  await db.query("savepoint s");
  await assert.rejects(db.query(select), { code: "0A000" });
  await db.query("rollback to s; commit");
  await db.query(`update ${table} set b = b || $1`, ["after"]);
}

// A portal, three rows at a time.
async function cursors(db) {
  await db.query("begin");
  const cursor = db.query(new Cursor("select generate_series(1, $1::int) as n", [7]));
  for (const expected of [[1, 2, 3], [4, 5, 6], [7]]) {
    assert.deepEqual((await cursor.read(3)).map((row) => row.n), expected);
  }
  await cursor.close();
  const unread = db.query(new Cursor("select generate_series(1, $1::int) as n", [7]));
  await unread.read(1);
  await unread.close();
  await db.query("commit");
}

async function notifications(db, me) {
  const heard = [];
  const all = new Promise((resolve) => {
    db.on("notification", ({ channel, payload }) => {
      heard.push(`${channel} ${payload}`);
      if (heard.length === 5) resolve();
    });
  });
  await db.query(`listen compat_${me}`);
  for (let n = 0; n < 5; n++) await db.query("select pg_notify($1, $2)", [`compat_${me}`, `${n}`]);
  await all;
  assert.deepEqual(heard, [0, 1, 2, 3, 4].map((n) => `compat_${me} ${n}`));
}

async function errors(db) {
  for (let n = 0; n < 3; n++) {
    await assert.rejects(db.query("select 1 / $1::int", [0]), { code: "22012" });
    await assert.rejects(db.query("select 1 / 0; select 2"), { code: "22012" });
  }
  // Several statements of one message.
  const both = await db.query("select 1 as a; select 2 as b");
  assert.deepEqual([both[0].rows[0].a, both[1].rows[0].b], [1, 2]);
}

async function copyBothWays(db, me) {
  const lines = Array.from({ length: 1000 }, (_, n) => `${me}\tcopied ${n}\n`);
  await pipeline(Readable.from(lines), db.query(copy.from("copy compat_node_copied from stdin")));
  const query = `copy (select * from compat_node_copied where client = ${me}) to stdout`;
  let received = "";
  for await (const chunk of db.query(copy.to(query))) received += chunk;
  assert.deepEqual(received.match(/.*\n/g).sort(), lines.sort());
}

async function cancellation(db) {
  const sleep = db.query("select pg_sleep(60)");
  const done = assert.rejects(sleep, { code: "57014" });
  await new Promise((resolve) => setTimeout(resolve, 300));
  // The driver's way to cancel: a connection of its own that carries the key.
  const canceller = new pg.Client();
  canceller.cancel(db, db._queryQueue?.[0] ?? db._activeQuery ?? db.activeQuery);
  await done;
}

const setUp = new pg.Client();
await setUp.connect();
await setUp.query("drop table if exists compat_node");
await setUp.query("create table compat_node (client int, note text)");
await setUp.query("drop table if exists compat_node_copied");
await setUp.query("create table compat_node_copied (client int, note text)");
await setUp.query("drop table if exists compat_node_typed");
await setUp.query(`create table compat_node_typed (client int, n int, num numeric, at timestamptz, d date, u uuid,
  result text)`);
await setUp.query("drop table if exists compat_node_untyped");
await setUp.query("create table compat_node_untyped (client int, n int, result text)");
for (let me = 0; me < CLIENTS; me++) await setUp.query(`drop table if exists compat_node_own_${me}`);
await setUp.query("drop table if exists compat_node_values");
await setUp.query(`create table compat_node_values (client int, n int, i int8, f float8, t text, b bytea,
  j jsonb, ints int[], texts text[], primary key (client, n))`);
await setUp.end();
await new Promise((resolve) => setTimeout(resolve, 1000 * PAUSE));
await Promise.all(Array.from({ length: CLIENTS }, (_, me) => client(me)));
console.log(`node-postgres ${require("pg/package.json").version}: ${CLIENTS} clients ok`);
