<?php
// PDO's driver for PostgreSQL through the pooler: each client is a process with a connection of its own.
declare(strict_types=1);

$clients = (int) (getenv('CLIENTS') ?: 50);

function connect(string $name, array $more = []): PDO
{
    $address = sprintf('pgsql:host=%s;port=%s;dbname=%s;application_name=%s',
        getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE'), $name);
    $options = [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION] + $more;
    return new PDO($address, getenv('PGUSER'), getenv('PGPASSWORD') ?: '', $options);
}

function check(mixed $found, mixed $expected): void
{
    if ($found !== $expected) {
        throw new Exception(sprintf('found %s, expected %s', json_encode($found), json_encode($expected)));
    }
}

function expect(string $sqlstate, callable $work): void
{
    try {
        $work();
    } catch (PDOException $error) {
        check((string) $error->getCode(), $sqlstate);
        return;
    }
    throw new Exception("$sqlstate was expected");
}

function client(int $me): void
{
    $name = "php-$me";
    $db = connect($name);
    $sum = $db->prepare('select ?::int * 1000 + ?::int, ?::text');
    for ($round = 0; $round < 20; $round++) {
        check($db->query('show application_name')->fetchColumn(), $name);
        $sum->execute([$me, $round, $name]);
        check($sum->fetch(PDO::FETCH_NUM), [$me * 1000 + $round, $name]);
    }
    transactions($db, $me);
    values($db, $me);
    typed($db, $me);
    preparedAgain($db, $me);
    cursors($db);
    errors($db);
    copyBothWays($db, $me);
}

function transactions(PDO $db, int $me): void
{
    $insert = $db->prepare('insert into compat_php values (:client, :note)');
    $db->beginTransaction();
    $insert->execute(['client' => $me, 'note' => 'lost']);
    $db->rollBack();
    $db->beginTransaction();
    for ($n = 0; $n < 5; $n++) {
        $insert->execute(['client' => $me, 'note' => "kept $n"]);
    }
    $db->exec('savepoint s');
    $insert->execute(['client' => $me, 'note' => 'lost in a savepoint']);
    expect('22012', fn () => $db->query('select 1 / 0'));
    $db->exec('rollback to s');
    $db->commit();
    $select = $db->prepare('select note from compat_php where client = ? order by 1');
    $select->execute([$me]);
    check($select->fetchAll(PDO::FETCH_COLUMN), array_map(fn ($n) => "kept $n", range(0, 4)));
}

/** Prepared on the server, bound but not prepared, and put into the text by the driver. */
const MODES = [
    [],
    [PDO::PGSQL_ATTR_DISABLE_PREPARES => true],
    [PDO::ATTR_EMULATE_PREPARES => true],
];

function values(PDO $db, int $me): void
{
    $bytes = implode('', array_map('chr', range(0, 255)));
    $rows = [
        [(string) ($me - 2 ** 62), '0.1', "Ünï\tcode\n'\\ ??", $bytes, '{"a": [1, null, "ü"]}', "{1,NULL,$me}", '{"",NULL,"\"{}"}'],
        [null, null, null, null, null, null, null],
        ['0', 'Infinity', '', '', '[]', '{}', '{}'],
    ];
    foreach (MODES as $at => $mode) {
        $text = 'insert into compat_php_values values (?, ?, ?, ?, ?, ?, ?, ?, ?)';
        $insert = $db->prepare($text, $mode);
        foreach ($rows as $n => $row) {
            $insert->bindValue(1, $me, PDO::PARAM_INT);
            $insert->bindValue(2, 10 * $at + $n, PDO::PARAM_INT);
            foreach ($row as $column => $value) {
                $kind = $value === null ? PDO::PARAM_NULL : ($column === 3 ? PDO::PARAM_LOB : PDO::PARAM_STR);
                $insert->bindValue($column + 3, $value, $kind);
            }
            $insert->execute();
            $select = $db->prepare('select t, b from compat_php_values where client = ? and n = ?', $mode);
            $select->execute([$me, 10 * $at + $n]);
            [$found, $stream] = $select->fetch(PDO::FETCH_NUM);
            check([$found, $stream === null ? null : stream_get_contents($stream)], [$row[2], $row[3]]);
        }
    }
}

function typed(PDO $db, int $me): void
{
    $rows = [
        [$me, 1, '12345678901234567890.000000001', '2026-11-20 12:30:15.123456+05:30', '2024-02-29',
            '00000000-0000-0000-0000-00000000000a'],
        [$me, 2, 'NaN', '-infinity', '0001-01-01 BC', null],
        [$me, 3, '-0.0010', null, null, 'ffffffff-ffff-ffff-ffff-ffffffffffff'],
    ];
    $expressions = [
        ['(?::int + ?::numeric)::text', 40000, '0.50'],
        ['(?::timestamptz - ?::timestamptz)::text', '2026-11-20 12:30:15.123456+05:30', '1900-01-01 00:00:00+00'],
        ['(unnest(?::int[]) * ?::int)::text', "{3,1,$me}", 2],
        ["concat(?::bool, '|', ?::text)", 't', "ü\\'\n"],
        ["(?::jsonb || ?::jsonb)::text", '{"ü": null}', '{"a": 1}'],
    ];
    foreach (MODES as $at => $mode) {
        $insert = $db->prepare('insert into compat_php_typed values (?, ?, ?, ?, ?, ?)', $mode);
        foreach ($rows as $row) {
            $insert->execute($row);
        }
        foreach ($expressions as $n => [$expression, $one, $other]) {
            $text = "insert into compat_php_typed (client, n, result) select ?::int, ?::int, $expression";
            $insert = $db->prepare($text, $mode);
            $insert->execute([$me, 100 * ($at + 1) + $n, $one, $other]);
            $insert->execute([$me, 100 * ($at + 1) + $n, $one, $other]);
        }
    }
}

/** A prepared statement whose result changes its type. */
function preparedAgain(PDO $db, int $me): void
{
    $table = "compat_php_own_$me";
    $db->exec("create table $table (a int, b text); insert into $table values (1, ''), (2, null)");
    // In a transaction, since a pooler may have prepared it on another server connection, too.
    $db->beginTransaction();
    $select = $db->prepare("select * from $table where a = ?");
    $select->execute([1]);
    $select->fetchAll();
    $db->exec("alter table $table add c text default 'c'; savepoint s");
    expect('0A000', fn () => $select->execute([1]));
    $db->exec('rollback to s');
    $select = null;
    // One that fails at once is deallocated, too.
    expect('22012', fn () => $db->prepare('select 1 / ?::int')->execute([0]));
    $db->exec('rollback to s');
    $db->commit();
    foreach (['one', 'two'] as $note) {
        $update = $db->prepare("update $table set b = b || '$note' || ?");
        $update->execute(['after']);
    }
}

/** A cursor that the driver declares. */
function cursors(PDO $db): void
{
    $db->beginTransaction();
    $select = $db->prepare('select generate_series(1, ?::int)', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
    $select->execute([25]);
    for ($n = 1; $n <= 25; $n++) {
        check($select->fetchColumn(), $n);
    }
    check($select->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_ABS, 3), [3]);
    $select->closeCursor();
    $db->commit();
}

function errors(PDO $db): void
{
    for ($n = 0; $n < 3; $n++) {
        expect('22012', fn () => $db->prepare('select 1 / ?::int')->execute([0]));
        expect('22012', fn () => $db->exec('select 1; select 1 / 0; select 2'));
        expect('42P01', fn () => $db->prepare('select * from no_such_table where a = ?')->execute([0]));
        expect('22P02', fn () => $db->prepare('select ?::int')->execute(['x']));
    }
}

function copyBothWays(PDO $db, int $me): void
{
    $lines = array_map(fn ($n) => "$me\tcopied $n\n", range(0, 999));
    $db->pgsqlCopyFromArray('compat_php_copied', $lines);
    $found = $db->pgsqlCopyToArray("(select * from compat_php_copied where client = $me)");
    sort($found);
    sort($lines);
    check($found, $lines);
}

$db = connect('php');
$tables = ['', '_values', '_typed', '_copied', ...array_map(fn ($me) => "_own_$me", range(0, $clients - 1))];
foreach ($tables as $table) {
    $db->exec("drop table if exists compat_php$table");
}
$db->exec('create table compat_php (client int, note text)');
$db->exec('create table compat_php_copied (client int, note text)');
$db->exec('create table compat_php_typed (client int, n int, num numeric, at timestamptz, d date, u uuid, result text)');
$db->exec('create table compat_php_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb,
    ints int[], texts text[], primary key (client, n))');
$db = null;

sleep((int) getenv('PAUSE'));
$processes = [];
for ($me = 0; $me < $clients; $me++) {
    $process = pcntl_fork();
    if ($process === 0) {
        try {
            client($me);
            exit(0);
        } catch (Throwable $error) {
            fwrite(STDERR, "client $me: $error\n");
            exit(1);
        }
    }
    $processes[] = $process;
}
$failed = 0;
foreach ($processes as $process) {
    pcntl_waitpid($process, $status);
    $failed += pcntl_wexitstatus($status) === 0 ? 0 : 1;
}
if ($failed > 0) {
    exit(1);
}
printf("PDO of PHP %s: %d clients ok\n", PHP_VERSION, $clients);
