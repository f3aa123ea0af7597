// lib/pq through the pooler: each client is a goroutine with connections of its own.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
)

const rounds = 20

func main() {
	clients := 50
	if text, ok := os.LookupEnv("CLIENTS"); ok {
		clients, _ = strconv.Atoi(text)
	}
	ctx := context.Background()
	db, err := connect(ctx, "lib-pq", false)
	must(err)
	tables := []string{"", "_values", "_typed", "_untyped", "_copied"}
	for me := 0; me < 2*clients; me++ {
		tables = append(tables, fmt.Sprintf("_own_%d", me))
	}
	for _, table := range tables {
		_, err = db.ExecContext(ctx, "drop table if exists compat_libpq"+table)
		must(err)
	}
	// Without values it is one message with several statements.
	_, err = db.ExecContext(ctx, `create table compat_libpq (client int, note text);
		create table compat_libpq_untyped (client int, n int, result text);
		create table compat_libpq_copied (client int, note text);
		create table compat_libpq_typed (client int, n int, num numeric, at timestamptz, d date, u uuid, result text);
		create table compat_libpq_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb, ints int8[],
			texts text[], primary key (client, n))`)
	must(err)
	must(db.Close())
	pause, _ := strconv.Atoi(os.Getenv("PAUSE"))
	time.Sleep(time.Duration(pause) * time.Second)
	done := make(chan error)
	for me := 0; me < clients; me++ {
		go func(me int) { done <- client(ctx, me) }(me)
	}
	for me := 0; me < clients; me++ {
		must(<-done)
	}
	fmt.Printf("lib/pq: %d clients ok\n", clients)
}

// With binary, bytea is sent as binary, and statements with values are not prepared by a trip of their own.
func connect(ctx context.Context, name string, binary bool) (*sql.Conn, error) {
	more := ""
	if binary {
		more = " binary_parameters=yes"
	}
	pool, err := sql.Open("postgres", fmt.Sprintf("sslmode=disable application_name=%s%s", name, more))
	if err != nil {
		return nil, err
	}
	return pool.Conn(ctx)
}

func client(ctx context.Context, me int) error {
	for at, binary := range []bool{false, true} {
		name := fmt.Sprintf("lib-pq-%d", me)
		db, err := connect(ctx, name, binary)
		if err != nil {
			return err
		}
		if err := echoes(ctx, db, me, name); err != nil {
			return fmt.Errorf("client %d: %w", me, err)
		}
		steps := []func(context.Context, *sql.Conn, int, int) error{
			transactions, values, typed, preparedAgain, cursors, failures, copyBothWays,
		}
		for _, step := range steps {
			if err := step(ctx, db, me, at); err != nil {
				return fmt.Errorf("client %d, binary %v: %w", me, binary, err)
			}
		}
		if me%10 == 0 {
			if err := cancellation(ctx, db); err != nil {
				return err
			}
		}
		if err := db.Close(); err != nil {
			return err
		}
	}
	return nil
}

func echoes(ctx context.Context, db *sql.Conn, me int, name string) error {
	sum, err := db.PrepareContext(ctx, "select $1::int * 1000 + $2::int, $3::text")
	if err != nil {
		return err
	}
	defer sum.Close()
	for round := 0; round < rounds; round++ {
		var shown, echo string
		var found int
		if err := db.QueryRowContext(ctx, "show application_name").Scan(&shown); err != nil {
			return err
		}
		if err := sum.QueryRowContext(ctx, me, round, name).Scan(&found, &echo); err != nil {
			return err
		}
		if shown != name || echo != name || found != me*1000+round {
			return fmt.Errorf("found %q %q %d", shown, echo, found)
		}
	}
	return nil
}

func transactions(ctx context.Context, db *sql.Conn, me, at int) error {
	insert := "insert into compat_libpq values ($1, $2)"
	lost, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := lost.Exec(insert, me, "lost"); err != nil {
		return err
	}
	if err := lost.Rollback(); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	for n := 0; n < 5; n++ {
		if _, err := tx.Exec(insert, me, fmt.Sprintf("kept %d.%d", at, n)); err != nil {
			return err
		}
	}
	for _, text := range []string{"savepoint s", "insert into compat_libpq values (0, 'lost in a savepoint')"} {
		if _, err := tx.Exec(text); err != nil {
			return err
		}
	}
	if _, err := tx.Exec("select 1 / 0"); expect(err, "22012") != nil {
		return err
	}
	if _, err := tx.Exec("rollback to s"); err != nil {
		return err
	}
	return tx.Commit()
}

func values(ctx context.Context, db *sql.Conn, me, at int) error {
	var every []byte
	for byte := 0; byte < 256; byte++ {
		every = append(every, uint8(byte))
	}
	rows := [][]any{
		{int64(me) - 1<<62, 0.1, "Ünï\tcode\n'\\", every, `{"a": [1, null, "ü"]}`,
			pq.Array([]int64{1, int64(me)}), pq.Array([]string{"", "NULL", "\"{}\\"})},
		{nil, nil, nil, nil, nil, nil, nil},
		{int64(0), math.Inf(1), "", []byte{}, "[]", pq.Array([]int64{}), pq.Array([]string{})},
	}
	insert := "insert into compat_libpq_values values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
	for n, row := range rows {
		n += 10 * at
		if _, err := db.ExecContext(ctx, insert, append([]any{me, n}, row...)...); err != nil {
			return err
		}
		var bytesFound []byte
		var text sql.NullString
		query := "select b, t from compat_libpq_values where client = $1 and n = $2"
		if err := db.QueryRowContext(ctx, query, me, n).Scan(&bytesFound, &text); err != nil {
			return err
		}
		put, _ := row[3].([]byte)
		if !bytes.Equal(bytesFound, put) || text.Valid != (row[2] != nil) {
			return fmt.Errorf("found %v, %v", bytesFound, text)
		}
	}
	return nil
}

func typed(ctx context.Context, db *sql.Conn, me, mode int) error {
	at := time.Date(2026, 11, 20, 12, 30, 15, 123456000, time.FixedZone("India", 19800))
	longAgo := time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := db.ExecContext(ctx, "insert into compat_libpq_typed values ($1, $2, $3, $4, $5, $6)", me, mode,
		"12345678901234567890.000000001", at, longAgo, "00000000-0000-0000-0000-00000000000a")
	if err != nil {
		return err
	}
	expressions := []struct {
		text       string
		one, other any
	}{
		{"($3::int8 + $4::numeric)::text", 40000, "0.50"},
		{"($3::text < $4::text)::text", "9", "10"},
		{"($3::timestamptz - $4)::text", at, longAgo},
		{"(unnest($3::int8[]) * $4::int)::text", pq.Array([]int64{3, 1, int64(me)}), 2},
		{"($3::int8 = any($4))::text", 10, pq.Array([]int64{9, 10})},
		{"concat($3::bool, '|', $4::text)", true, "ü\\'\n"},
	}
	for n, it := range expressions {
		text := "insert into compat_libpq_typed (client, n, result) select $1::int, $2::int, " + it.text
		if _, err := db.ExecContext(ctx, text, me, 100*(mode+1)+n, it.one, it.other); err != nil {
			return fmt.Errorf("%s: %w", it.text, err)
		}
	}
	// Texts that a log, which has no types, shows as it would show numbers.
	text := "insert into compat_libpq_untyped select $1::int, $2::int, greatest($3, $4)"
	_, err = db.ExecContext(ctx, text, me, mode, "9", "10")
	return err
}

// A prepared statement whose result changes its type.
func preparedAgain(ctx context.Context, db *sql.Conn, me, at int) error {
	table := fmt.Sprintf("compat_libpq_own_%d", 2*me+at)
	texts := "create table " + table + " (a int, b text); insert into " + table + " values (1, ''), (2, null)"
	if _, err := db.ExecContext(ctx, texts); err != nil {
		return err
	}
	// In a transaction, since a pooler may have prepared it on another server connection, too.
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	query, err := tx.Prepare("select * from " + table + " where a = $1")
	if err != nil {
		return err
	}
	rows, err := query.Query(1)
	if err != nil {
		return err
	}
	rows.Close()
	for _, text := range []string{"alter table " + table + " add c text default 'c'", "savepoint s"} {
		if _, err := tx.Exec(text); err != nil {
			return err
		}
	}
	if _, err := query.Query(1); expect(err, "0A000") != nil {
		return fmt.Errorf("the result has no other type: %w", err)
	}
	if _, err := tx.Exec("rollback to s"); err != nil {
		return err
	}
	if err := query.Close(); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "update "+table+" set b = b || $1", "after")
	return err
}

func cursors(ctx context.Context, db *sql.Conn, _, _ int) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	if _, err := tx.Exec("declare parts cursor for select generate_series(1, 25)"); err != nil {
		return err
	}
	for _, expected := range []int{10, 10, 5, 0} {
		rows, err := tx.Query("fetch 10 from parts")
		if err != nil {
			return err
		}
		found := 0
		for rows.Next() {
			found++
		}
		if rows.Err() != nil || found != expected {
			return fmt.Errorf("fetched %d rows, expected %d, %w", found, expected, rows.Err())
		}
	}
	return tx.Commit()
}

func failures(ctx context.Context, db *sql.Conn, _, _ int) error {
	for n := 0; n < 3; n++ {
		for _, it := range [][2]string{
			{"select 1 / $1::int", "22012"}, {"select * from no_such_table where a = $1", "42P01"},
		} {
			_, err := db.ExecContext(ctx, it[0], 0)
			if err := expect(err, it[1]); err != nil {
				return err
			}
		}
		_, err := db.ExecContext(ctx, "select 1; select 1 / 0; select 2")
		if err := expect(err, "22012"); err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "select $1::int", "x")
		if err := expect(err, "22P02"); err != nil {
			return err
		}
	}
	return nil
}

func copyBothWays(ctx context.Context, db *sql.Conn, me, _ int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	into, err := tx.Prepare(pq.CopyIn("compat_libpq_copied", "client", "note"))
	if err != nil {
		return err
	}
	for n := 0; n < 1000; n++ {
		if _, err := into.Exec(me, fmt.Sprintf("copied\t%d\n", n)); err != nil {
			return err
		}
	}
	if _, err := into.Exec(); err != nil {
		return err
	}
	if err := into.Close(); err != nil {
		return err
	}
	return tx.Commit()
}

func cancellation(ctx context.Context, db *sql.Conn) error {
	// The driver cancels the statement, and closes the connection.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err := db.ExecContext(short, "select pg_sleep(60)")
	if err == nil || !(errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "cancel")) {
		return fmt.Errorf("a statement that was cancelled: %w", err)
	}
	return nil
}

func expect(err error, sqlstate string) error {
	var failure *pq.Error
	if errors.As(err, &failure) && string(failure.Code) == sqlstate {
		return nil
	}
	return fmt.Errorf("expected SQLSTATE %s, found %w (%v)", sqlstate, err, reflect.TypeOf(err))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "lib/pq:", err)
		os.Exit(1)
	}
}
