// pgx through the pooler: each client is a goroutine with a connection of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

const rounds = 20

func main() {
	clients := 50
	if text, ok := os.LookupEnv("CLIENTS"); ok {
		clients, _ = strconv.Atoi(text)
	}
	ctx := context.Background()
	db, err := connect(ctx, "pgx")
	must(err)
	_, err = db.Exec(ctx, "drop table if exists compat_pgx")
	must(err)
	_, err = db.Exec(ctx, "create table compat_pgx (client int, note text)")
	must(err)
	for _, text := range []string{
		"drop table if exists compat_pgx_copied",
		"create table compat_pgx_copied (client int, note text)",
		"drop table if exists compat_pgx_typed",
		`create table compat_pgx_typed (client int, n int, num numeric, at timestamptz, d date, u uuid, result text)`,
	} {
		_, err = db.Exec(ctx, text)
		must(err)
	}
	for me := 0; me < clients; me++ {
		_, err = db.Exec(ctx, fmt.Sprintf("drop table if exists compat_pgx_own_%d", me))
		must(err)
	}
	_, err = db.Exec(ctx, "drop table if exists compat_pgx_values")
	must(err)
	_, err = db.Exec(ctx, `create table compat_pgx_values (client int, n int, i int8, f float8, t text, b bytea,
		j jsonb, ints int[], texts text[], primary key (client, n))`)
	must(err)
	must(db.Close(ctx))
	pause, _ := strconv.Atoi(os.Getenv("PAUSE"))
	time.Sleep(time.Duration(pause) * time.Second)
	done := make(chan error)
	for me := 0; me < clients; me++ {
		go func(me int) { done <- client(ctx, me) }(me)
	}
	for me := 0; me < clients; me++ {
		must(<-done)
	}
	fmt.Printf("pgx: %d clients ok\n", clients)
}

func connect(ctx context.Context, name string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = name
	return pgx.ConnectConfig(ctx, config)
}

func client(ctx context.Context, me int) error {
	name := fmt.Sprintf("pgx-%d", me)
	db, err := connect(ctx, name)
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	for round := 0; round < rounds; round++ {
		var shown, echo string
		var sum int
		if err := db.QueryRow(ctx, "show application_name").Scan(&shown); err != nil {
			return err
		}
		// The driver prepares each text once and keeps it.
		row := db.QueryRow(ctx, "select $1::int * 1000 + $2::int, $3::text", me, round, name)
		if err := row.Scan(&sum, &echo); err != nil {
			return err
		}
		if shown != name || echo != name || sum != me*1000+round {
			return fmt.Errorf("client %d found %q %q %d", me, shown, echo, sum)
		}
	}
	steps := []func(context.Context, *pgx.Conn, int) error{transactions, values, typed, preparedAgain, cursors, failures, copyBothWays, batch}
	for _, step := range steps {
		if err := step(ctx, db, me); err != nil {
			return fmt.Errorf("client %d: %w", me, err)
		}
	}
	if me%10 == 0 {
		return cancellation(ctx, db)
	}
	return nil
}

func transactions(ctx context.Context, db *pgx.Conn, me int) error {
	lost, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := lost.Exec(ctx, "insert into compat_pgx values ($1, 'lost')", me); err != nil {
		return err
	}
	if err := lost.Rollback(ctx); err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := savepoint.Exec(ctx, "insert into compat_pgx values ($1, 'in a savepoint')", me); err != nil {
			return err
		}
		if err := savepoint.Rollback(ctx); err != nil {
			return err
		}
		for n := 0; n < 5; n++ {
			note := fmt.Sprintf("kept %d", n)
			if _, err := tx.Exec(ctx, "insert into compat_pgx values ($1, $2)", me, note); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows, err := db.Query(ctx, "select note from compat_pgx where client = $1 order by 1", me)
	if err != nil {
		return err
	}
	notes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if found := strings.Join(notes, ","); found != "kept 0,kept 1,kept 2,kept 3,kept 4" {
		return fmt.Errorf("found %q", found)
	}
	return nil
}

type row struct {
	I     *int64
	F     *float64
	T     *string
	B     []byte
	J     *string
	Ints  []*int32
	Texts []string
}

func values(ctx context.Context, db *pgx.Conn, me int) error {
	number, fraction, text := int64(me)-1<<62, 0.1, "Ünï\tcode\n'\\"
	zero, infinite, empty := int64(0), math.Inf(1), ""
	document, nothing := `{"a": [1, null, "ü"]}`, "{}"
	one, last := int32(1), int32(me)
	var bytes []byte
	for byte := 0; byte < 256; byte++ {
		bytes = append(bytes, uint8(byte))
	}
	rows := []row{
		{&number, &fraction, &text, bytes, &document,
			[]*int32{&one, nil, &last}, []string{"", "NULL", "\"{}\\"}},
		{},
		{&zero, &infinite, &empty, []byte{}, &nothing, []*int32{}, []string{}},
	}
	modes := []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	}
	insert := "insert into compat_pgx_values values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
	query := "select i, f, t, b, j, ints, texts from compat_pgx_values where client = $1 and n = $2"
	for at, mode := range modes {
		for n, put := range rows {
			n += 10 * at
			_, err := db.Exec(ctx, insert, mode, me, n, put.I, put.F, put.T, put.B, put.J, put.Ints, put.Texts)
			if err != nil {
				return fmt.Errorf("mode %v: %w", mode, err)
			}
			found, err := db.Query(ctx, query, mode, me, n)
			if err != nil {
				return err
			}
			got, err := pgx.CollectExactlyOneRow(found, pgx.RowToStructByPos[row])
			if err != nil {
				return fmt.Errorf("mode %v: %w", mode, err)
			}
			if !reflect.DeepEqual(got, put) {
				return fmt.Errorf("mode %v: found %+v, expected %+v", mode, got, put)
			}
		}
	}
	return nil
}

// Values whose types the driver takes from the server, in all of its modes.
func typed(ctx context.Context, db *pgx.Conn, me int) error {
	at := time.Date(2026, 11, 20, 12, 30, 15, 123456000, time.FixedZone("India", 19800))
	longAgo := time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
	modes := []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	}
	var number pgtype.Numeric
	if err := number.Scan("12345678901234567890.000000001"); err != nil {
		return err
	}
	expressions := []struct {
		text       string
		one, other any
	}{
		{"($3::int8 + $4::numeric)::text", int64(40000), number},
		{"($3::text < $4::text)::text", "9", "10"},
		{"($3::timestamptz - $4)::text", at, longAgo},
		{"($3::timestamptz - $4::interval)::text", at, time.Duration(3 * time.Second)},
		{"(unnest($3::int[]) * $4::int)::text", []int32{3, 1, int32(me)}, int32(2)},
		{"($3::int = any($4::int[]))::text", int32(10), []int32{9, 10}},
		{"concat($3::bool, '|', $4::text)", true, "ü\\'\n"},
	}
	for mode, way := range modes {
		_, err := db.Exec(ctx, "insert into compat_pgx_typed values ($1, $2, $3, $4, $5, $6)", way, me, mode,
			number, at, longAgo, "00000000-0000-0000-0000-00000000000a")
		if err != nil {
			return fmt.Errorf("mode %v: %w", way, err)
		}
		for n, it := range expressions {
			text := "insert into compat_pgx_typed (client, n, result) select $1::int, $2::int, " + it.text
			for round := 0; round < 2; round++ {
				if _, err := db.Exec(ctx, text, way, me, 100*(mode+1)+n, it.one, it.other); err != nil {
					return fmt.Errorf("mode %v, %s: %w", way, it.text, err)
				}
			}
		}
	}
	return nil
}

// A prepared statement whose result changes its type, one of a name that is used again, and prepared
// statements that are gone.
func preparedAgain(ctx context.Context, db *pgx.Conn, me int) error {
	table := fmt.Sprintf("compat_pgx_own_%d", me)
	query := "select * from " + table
	// In a transaction, since a pooler may have prepared it on another server connection, too.
	steps := []string{
		"create table " + table + " (a int, b text)",
		"insert into " + table + " values (1, ''), (2, null)",
		"begin", query, query, "alter table " + table + " add c text default 'c'", "savepoint s",
		query, "rollback to s", query, "commit",
	}
	for _, step := range steps {
		rows, err := db.Query(ctx, step)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		if err != nil && expect(err, "0A000") != nil {
			return err
		}
	}
	for _, note := range []string{"one", "two"} {
		text := "update " + table + " set b = b || '" + note + "' || $1"
		if _, err := db.Prepare(ctx, "again", text); err != nil {
			return err
		}
		if _, err := db.Exec(ctx, "again", "after"); err != nil {
			return err
		}
		if err := db.Deallocate(ctx, "again"); err != nil {
			return err
		}
	}
	return db.DeallocateAll(ctx)
}

func cursors(ctx context.Context, db *pgx.Conn, _ int) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "declare parts cursor for select generate_series(1, 25)"); err != nil {
			return err
		}
		for _, expected := range []int{10, 10, 5, 0} {
			rows, err := tx.Query(ctx, "fetch 10 from parts")
			if err != nil {
				return err
			}
			found, err := pgx.CollectRows(rows, pgx.RowTo[int])
			if err != nil || len(found) != expected {
				return fmt.Errorf("fetched %d rows, expected %d, %w", len(found), expected, err)
			}
		}
		return nil
	})
}

func failures(ctx context.Context, db *pgx.Conn, _ int) error {
	for n := 0; n < 3; n++ {
		_, err := db.Exec(ctx, "select 1 / $1::int", 0)
		if err := expect(err, "22012"); err != nil {
			return err
		}
		_, err = db.Exec(ctx, "select * from no_such_table where a = $1", 0)
		if err := expect(err, "42P01"); err != nil {
			return err
		}
	}
	return nil
}

func copyBothWays(ctx context.Context, db *pgx.Conn, me int) error {
	var lines []string
	var rows [][]any
	for n := 0; n < 1000; n++ {
		note := fmt.Sprintf("copied %d", n)
		lines = append(lines, note)
		rows = append(rows, []any{me, note})
	}
	columns := []string{"client", "note"}
	if _, err := db.CopyFrom(ctx, pgx.Identifier{"compat_pgx_copied"}, columns, pgx.CopyFromRows(rows)); err != nil {
		return err
	}
	var received strings.Builder
	query := fmt.Sprintf("copy (select note from compat_pgx_copied where client = %d) to stdout", me)
	if _, err := db.PgConn().CopyTo(ctx, &received, query); err != nil {
		return err
	}
	found := strings.Split(strings.TrimSpace(received.String()), "\n")
	sort.Strings(found)
	sort.Strings(lines)
	if strings.Join(found, ",") != strings.Join(lines, ",") {
		return fmt.Errorf("%d lines came out of COPY", len(found))
	}
	return nil
}

// Several statements on their way at once, one of which fails.
func batch(ctx context.Context, db *pgx.Conn, me int) error {
	var statements pgx.Batch
	for n := 0; n < 10; n++ {
		statements.Queue("select $1::int + $2::int", me, n)
	}
	statements.Queue("select 1 / $1::int", 0)
	results := db.SendBatch(ctx, &statements)
	for n := 0; n < 10; n++ {
		var sum int
		if err := results.QueryRow().Scan(&sum); err != nil || sum != me+n {
			return fmt.Errorf("statement %d of a batch: %d, %w", n, sum, err)
		}
	}
	_, err := results.Exec()
	results.Close()
	return expect(err, "22012")
}

func cancellation(ctx context.Context, db *pgx.Conn) error {
	go func() {
		time.Sleep(300 * time.Millisecond)
		// Not the driver's own way, which closes the connection; the protocol's is what is tested.
		_ = db.PgConn().CancelRequest(ctx)
	}()
	_, err := db.Exec(ctx, "select pg_sleep(60)")
	return expect(err, "57014")
}

func expect(err error, sqlstate string) error {
	var failure *pgconn.PgError
	if errors.As(err, &failure) && failure.Code == sqlstate {
		return nil
	}
	return fmt.Errorf("expected SQLSTATE %s, found %w", sqlstate, err)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgx:", err)
		os.Exit(1)
	}
}
