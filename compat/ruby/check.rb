# ruby-pg through the pooler: each client is a thread with a connection of its own.
require "bigdecimal"
require "json"
require "pg"

CLIENTS = Integer(ENV.fetch("CLIENTS", "50"))
ROUNDS = 20
Thread.abort_on_exception = true

# libpq finds the rest in the environment.
def connect(name) = PG.connect(application_name: name)

def check(found, expected)
  raise "found #{found.inspect}, expected #{expected.inspect}" unless found == expected
end

def expect(error)
  yield
rescue error
  nil
else
  raise "#{error} was expected"
end

def client(me)
  name = "ruby-#{me}"
  db = connect(name)
  db.prepare("sum", "select $1::int * 1000 + $2::int")
  ROUNDS.times do |round|
    check(db.exec("show application_name").getvalue(0, 0), name)
    check(db.exec_prepared("sum", [me, round]).getvalue(0, 0), (me * 1000 + round).to_s)
    check(db.exec_params("select $1::text", [name]).getvalue(0, 0), name)
  end
  transactions(db, me)
  values(db, me)
  typed(db, me)
  untyped(db, me)
  prepared_again(db, me)
  cursors(db)
  errors(db)
  pipeline(db, me)
  copy(db, me)
  cancellation(db) if (me % 10).zero?
  db.close
end

def transactions(db, me)
  insert = "insert into compat_ruby values ($1, $2)"
  expect(KeyError) do
    db.transaction do
      db.exec_params(insert, [me, "lost"])
      raise KeyError
    end
  end
  db.transaction do
    5.times { |n| db.exec_params(insert, [me, "kept #{n}"]) }
    db.exec("savepoint s")
    db.exec_params(insert, [me, "lost in a savepoint"])
    expect(PG::DivisionByZero) { db.exec("select 1 / 0") }
    db.exec("rollback to s")
  end
  found = db.exec_params("select note from compat_ruby where client = $1 order by 1", [me])
  check(found.column_values(0), Array.new(5) { |n| "kept #{n}" })
end

EVERY_BYTE = (0..255).to_a.pack("C*")

# As text without types, as binary with types, and by a type map.
def values(db, me)
  insert = "insert into compat_ruby_values values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
  ints = PG::TextEncoder::Array.new(elements_type: PG::TextEncoder::Integer.new)
  texts = PG::TextEncoder::Array.new(elements_type: PG::TextEncoder::String.new)
  rows = [
    [me - 2**62, 0.1 + me, "Ünï\tcode\n'\\", EVERY_BYTE, { a: [1, nil, "ü"] }.to_json, [1, nil, me], ["", "NULL", '"{}\\']],
    [nil] * 7,
    [0, Float::INFINITY, "", "", "[]", [], []],
  ]
  rows.each_with_index do |(i, f, t, b, j, is, ts), n|
    bytes = { value: b, format: 1, type: 17 }
    more = [j, is && ints.encode(is), ts && texts.encode(ts)]
    db.exec_params(insert, [me, n, i, f, t, bytes, *more])
    binary = [
      { value: [me].pack("N"), format: 1, type: 23 }, { value: [n + 10].pack("N"), format: 1, type: 23 },
      { value: i && [i].pack("q>"), format: 1, type: 20 }, { value: f && [f].pack("G"), format: 1, type: 701 },
      { value: t, format: 1, type: 25 }, bytes,
    ]
    db.exec_params(insert, binary + more)
    types = PG::TypeMapByColumn.new(
      [PG::TextEncoder::Integer.new] * 3 + [PG::TextEncoder::Float.new, PG::TextEncoder::String.new,
       PG::BinaryEncoder::Bytea.new, nil, ints, texts]
    )
    db.exec_params(insert, [me, n + 20, i, f, t, b, j, is, ts], 0, types)
    found = db.exec_params("select b, t from compat_ruby_values where client = $1 order by n", [me], 1)
    check(found.values.last.map { |it| it&.b }, [b, t].map { |it| it&.b })
  end
end

def typed(db, me)
  insert = "insert into compat_ruby_typed values ($1, $2, $3, $4, $5, $6)"
  [
    [me, 1, BigDecimal("12345678901234567890.000000001").to_s("F"), "2026-11-20 12:30:15.123456+05:30", "2024-02-29",
     "00000000-0000-0000-0000-00000000000a"],
    [me, 2, "NaN", "-infinity", "0001-01-01 BC", nil],
    [me, 3, "-0.0010", nil, nil, "ffffffff-ffff-ffff-ffff-ffffffffffff"],
  ].each { |row| db.exec_params(insert, row) }
  # The numbers are those of types: int4, numeric, timestamptz, interval, int4[], bool, text.
  [
    ["($3 + $4)::text", ["40000", 23], ["0.50", 1700]],
    ["($3 < $4)::text", ["9", 23], ["10", 23]],
    ["greatest($3, $4)::text", ["9", 23], ["10", 23]],
    ["($3 - $4)::text", ["2026-11-20 12:30:15.123456+05:30", 1184], ["1900-01-01 00:00:00+00", 1184]],
    ["($3 - $4)::text", ["2026-11-20 12:30:15.123456+05:30", 1184], ["1 day 00:00:03", 1186]],
    ["(unnest($3) * $4)::text", ["{3,1,#{me}}", 1007], ["2", 23]],
    ["concat($3, '|', $4)", ["t", 16], ["ü\\'\n", 25]],
  ].each_with_index do |(expression, one, other), n|
    text = "insert into compat_ruby_typed (client, n, result) select $1::int, $2::int, #{expression}"
    parameters = [one, other].map { |value, type| { value:, type: } }
    db.exec_params(text, [me, 100 + n, *parameters])
    db.prepare("typed #{n}", text, [23, 23, one[1], other[1]])
    2.times { |round| db.exec_prepared("typed #{n}", [me, 200 + 100 * round + n, one[0], other[0]]) }
  end
end

# Texts that a log, which has no types, shows as it would show numbers.
def untyped(db, me)
  ["($3 < $4)::text", "greatest($3, $4)"].each_with_index do |expression, n|
    db.exec_params("insert into compat_ruby_untyped select $1::int, $2::int, #{expression}", [me, n, "9", "10"])
  end
end

# A prepared statement whose result changes its type, and names that are used again.
def prepared_again(db, me)
  table = "compat_ruby_own_#{me}"
  db.exec("create table #{table} (a int, b text); insert into #{table} values (1, ''), (2, null)")
  # In a transaction, since a pooler may have prepared it on another server connection, too.
  db.transaction do
    db.prepare("again", "select * from #{table} where a = $1")
    db.exec_prepared("again", [1])
    db.exec("alter table #{table} add c text default 'c'; savepoint s")
    expect(PG::FeatureNotSupported) { db.exec_prepared("again", [1]) }
    db.exec("rollback to s")
    %w[one two].each do |note|
      db.exec("deallocate again")
      db.prepare("again", "update #{table} set b = b || '#{note}' || $1")
      db.exec_prepared("again", ["after"])
    end
  end
end

def cursors(db)
  db.transaction do
    db.exec_params("declare parts cursor for select generate_series(1, $1::int)", [25])
    check(Array.new(4) { db.exec("fetch 10 from parts").ntuples }, [10, 10, 5, 0])
  end
  db.send_query("select generate_series(1, 25)")
  db.set_single_row_mode
  check(db.get_result.stream_each_row.to_a.size, 25)
  db.get_result
end

def errors(db)
  3.times do
    expect(PG::DivisionByZero) { db.exec_params("select 1 / $1::int", [0]) }
    expect(PG::DivisionByZero) { db.exec("select 1; select 1 / 0; select 2") }
    expect(PG::UndefinedTable) { db.exec_params("select * from no_such_table where a = $1", [0]) }
    expect(PG::InvalidTextRepresentation) { db.exec_params("select $1::int", ["x"]) }
  end
end

# One pipeline without and one with an error, after which the rest is not done.
def pipeline(db, me)
  insert = "insert into compat_ruby values ($1, $2)"
  db.enter_pipeline_mode
  5.times { |n| db.send_query_params(insert, [me, "pipeline #{n}"]) }
  db.pipeline_sync
  db.send_query_params(insert, [me, "lost"])
  db.send_query_params("select 1 / $1::int", [0])
  db.send_query_params(insert, [me, "never sent"])
  db.pipeline_sync
  syncs = 0
  while syncs < 2
    result = db.get_result
    syncs += 1 if result && result.result_status == PG::PGRES_PIPELINE_SYNC
  end
  db.exit_pipeline_mode
end

def copy(db, me)
  rows = Array.new(1000) { |n| [me.to_s, "copied\t#{n}\n"] }
  db.copy_data("copy compat_ruby_copied from stdin", PG::TextEncoder::CopyRow.new) do
    rows.each { |row| db.put_copy_data(row) }
  end
  received = []
  query = "copy (select * from compat_ruby_copied where client = #{me}) to stdout"
  db.copy_data(query, PG::TextDecoder::CopyRow.new) do
    while (row = db.get_copy_data)
      received << row
    end
  end
  check(received.sort, rows.sort)
end

def cancellation(db)
  canceller = Thread.new do
    sleep 0.3
    db.cancel
  end
  expect(PG::QueryCanceled) { db.exec("select pg_sleep(60)") }
  canceller.join
end

set_up = connect("ruby")
set_up.exec("set client_min_messages = warning")
["", "_values", "_typed", "_untyped", "_copied", *Array.new(CLIENTS) { |me| "_own_#{me}" }].each do |table|
  set_up.exec("drop table if exists compat_ruby#{table}")
end
set_up.exec("create table compat_ruby (client int, note text)")
set_up.exec("create table compat_ruby_copied (client int, note text)")
set_up.exec("create table compat_ruby_untyped (client int, n int, result text)")
set_up.exec("create table compat_ruby_typed (client int, n int, num numeric, at timestamptz, d date, u uuid, result text)")
set_up.exec("create table compat_ruby_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb,
  ints int[], texts text[], primary key (client, n))")
set_up.close
sleep Integer(ENV.fetch("PAUSE", "0"))
Array.new(CLIENTS) { |me| Thread.new { client(me) } }.each(&:join)
puts "ruby-pg #{PG::VERSION}: #{CLIENTS} clients ok"
