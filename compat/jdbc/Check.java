// pgJDBC through the pooler: each client is a thread with a connection of its own.

import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.LocalDate;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.postgresql.PGConnection;

public class Check {
    static final int CLIENTS = Integer.parseInt(System.getenv().getOrDefault("CLIENTS", "50"));
    static final int ROUNDS = 20;
    static final long PAUSE_MILLIS = 1000 * Long.parseLong(System.getenv().getOrDefault("PAUSE", "0"));

    public static void main(String[] args) throws Exception {
        try (Connection db = connect("jdbc"); Statement statement = db.createStatement()) {
            statement.execute("drop table if exists compat_jdbc");
            statement.execute("create table compat_jdbc (client int, note text)");
            statement.execute("drop table if exists compat_jdbc_copied");
            statement.execute("create table compat_jdbc_copied (client int, note text)");
            statement.execute("drop table if exists compat_jdbc_untyped");
            statement.execute("create table compat_jdbc_untyped (client int, result text)");
            statement.execute("drop table if exists compat_jdbc_typed");
            statement.execute("create table compat_jdbc_typed (client int, n int, num numeric, at timestamptz,"
                    + " d date, u uuid, result text)");
            for (int me = 0; me < CLIENTS; me++) {
                statement.execute("drop table if exists compat_jdbc_own_" + me);
            }
            statement.execute("drop table if exists compat_jdbc_values");
            statement.execute("create table compat_jdbc_values (client int, n int, i int8, f float8, t text,"
                    + " b bytea, j jsonb, ints int[], texts text[], primary key (client, n))");
        }
        Thread.sleep(PAUSE_MILLIS);
        var threads = Executors.newFixedThreadPool(CLIENTS);
        List<Callable<Void>> clients =
                IntStream.range(0, CLIENTS).mapToObj(Check::client).collect(Collectors.toList());
        try {
            for (Future<Void> client : threads.invokeAll(clients)) client.get();
        } finally {
            threads.shutdownNow();
        }
        System.out.println("pgJDBC " + org.postgresql.util.DriverInfo.DRIVER_VERSION + ": "
                + CLIENTS + " clients ok");
    }

    static Connection connect(String name) throws SQLException {
        var env = System.getenv();
        var url = "jdbc:postgresql://" + env.get("PGHOST") + ":" + env.get("PGPORT") + "/"
                + env.get("PGDATABASE");
        var properties = new Properties();
        properties.setProperty("user", env.get("PGUSER"));
        properties.setProperty("password", env.getOrDefault("PGPASSWORD", ""));
        properties.setProperty("ApplicationName", name);
        // Prepared on the server from the third use on, so that there are both kinds.
        properties.setProperty("prepareThreshold", "3");
        return DriverManager.getConnection(url, properties);
    }

    static Callable<Void> client(int me) {
        return () -> {
            var name = "jdbc-" + me;
            try (Connection db = connect(name)) {
                prepared(db, me, name);
                transactions(db, me);
                values(db, me);
                typed(db, me);
                untyped(db, me);
                preparedAgain(db, me);
                errors(db);
                copy(db, me);
                if (me % 10 == 0) cancellation(db);
            }
            return null;
        };
    }

    static void prepared(Connection db, int me, String name) throws SQLException {
        try (PreparedStatement sum = db.prepareStatement("select ?::int * 1000 + ?::int, ?::text");
                PreparedStatement show = db.prepareStatement("show application_name")) {
            for (int round = 0; round < ROUNDS; round++) {
                sum.setInt(1, me);
                sum.setInt(2, round);
                sum.setString(3, name);
                try (ResultSet rows = sum.executeQuery()) {
                    rows.next();
                    check(rows.getInt(1), me * 1000 + round);
                    check(rows.getString(2), name);
                }
                try (ResultSet rows = show.executeQuery()) {
                    rows.next();
                    check(rows.getString(1), name);
                }
            }
        }
    }

    static void transactions(Connection db, int me) throws SQLException {
        db.setAutoCommit(false);
        try (PreparedStatement insert = db.prepareStatement("insert into compat_jdbc values (?, ?)")) {
            insert.setInt(1, me);
            insert.setString(2, "lost");
            insert.executeUpdate();
            db.rollback();
            for (int n = 0; n < 5; n++) {
                insert.setInt(1, me);
                insert.setString(2, "kept " + n);
                insert.addBatch();
            }
            insert.executeBatch();
            var savepoint = db.setSavepoint();
            insert.setString(2, "lost in a savepoint");
            insert.executeUpdate();
            db.rollback(savepoint);
            db.commit();
        }
        try (PreparedStatement select = db.prepareStatement(
                "select note from compat_jdbc where client = ? order by 1")) {
            // Portals: three rows at a time.
            select.setFetchSize(3);
            select.setInt(1, me);
            try (ResultSet rows = select.executeQuery()) {
                for (int n = 0; n < 5; n++) {
                    rows.next();
                    check(rows.getString(1), "kept " + n);
                }
                check(rows.next(), false);
            }
        }
        db.commit();
        db.setAutoCommit(true);
    }

    /** Often enough that the driver goes over to binary. */
    static void values(Connection db, int me) throws SQLException {
        var bytes = new byte[256];
        for (int n = 0; n < bytes.length; n++) bytes[n] = (byte) n;
        var json = "{\"a\": [1, null]}";
        try (PreparedStatement insert = db.prepareStatement(
                        "insert into compat_jdbc_values values (?, ?, ?, ?, ?, ?, ?::jsonb, ?, ?)");
                PreparedStatement select = db.prepareStatement("select i, f, t, b, j, ints, texts"
                        + " from compat_jdbc_values where client = ? and n = ?")) {
            for (int n = 0; n < 10; n++) {
                insert.setInt(1, me);
                insert.setInt(2, n);
                boolean isNull = n % 3 == 2;
                if (isNull) {
                    for (int at = 3; at <= 9; at++) insert.setObject(at, null);
                } else {
                    insert.setLong(3, Long.MIN_VALUE + me);
                    insert.setDouble(4, 0.1);
                    insert.setString(5, "Ünï\tcode\n'\\");
                    insert.setBytes(6, bytes);
                    insert.setString(7, json);
                    insert.setArray(8, db.createArrayOf("int4", new Integer[] {1, null, me}));
                    insert.setArray(9, db.createArrayOf("text", new String[] {"", "NULL", "\"{}\\"}));
                }
                insert.executeUpdate();
                select.setInt(1, me);
                select.setInt(2, n);
                try (ResultSet row = select.executeQuery()) {
                    row.next();
                    if (isNull) {
                        for (int at = 1; at <= 7; at++) check(row.getObject(at) == null, true);
                        continue;
                    }
                    check(row.getLong(1), Long.MIN_VALUE + me);
                    check(row.getDouble(2), 0.1);
                    check(row.getString(3), "Ünï\tcode\n'\\");
                    check(Arrays.equals(row.getBytes(4), bytes), true);
                    check(row.getString(5), json);
                    check(Arrays.asList((Object[]) row.getArray(6).getArray()), Arrays.asList(1, null, me));
                    check(Arrays.asList((Object[]) row.getArray(7).getArray()),
                            Arrays.asList("", "NULL", "\"{}\\"));
                }
            }
        }
    }

    /** Types that the driver declares, as text and, from some use on, as binary. */
    static void typed(Connection db, int me) throws SQLException {
        var at = OffsetDateTime.of(2026, 11, 20, 12, 30, 15, 123456000, ZoneOffset.ofHoursMinutes(5, 30));
        var longAgo = OffsetDateTime.of(1900, 1, 1, 0, 0, 0, 0, ZoneOffset.UTC);
        try (PreparedStatement insert =
                db.prepareStatement("insert into compat_jdbc_typed values (?, ?, ?, ?, ?, ?)")) {
            for (int n = 0; n < 8; n++) {
                insert.setInt(1, me);
                insert.setInt(2, n);
                insert.setBigDecimal(3, new BigDecimal("12345678901234567890.000000001").scaleByPowerOfTen(-n));
                insert.setObject(4, n % 2 == 0 ? at : null, Types.TIMESTAMP_WITH_TIMEZONE);
                insert.setObject(5, LocalDate.of(2024, 2, 29));
                insert.setObject(6, n % 3 == 0 ? new UUID(me, n) : null);
                insert.executeUpdate();
            }
        }
        Object[][] expressions = {
            {"(? + ?)::text", 40000, new BigDecimal("0.50")},
            {"(? < ?)::text", 9, 10},
            {"greatest(?, ?)::text", 9, 10},
            {"(? - ?)::text", at, longAgo},
            {"(unnest(?) * ?)::text", db.createArrayOf("int4", new Integer[] {3, 1, me}), 2},
            {"(? = any(?))::text", 10, db.createArrayOf("int4", new Integer[] {9, 10})},
            {"concat(?, '|', ?)", true, "ü\\'\n"},
        };
        for (int which = 0; which < expressions.length; which++) {
            var expression = expressions[which];
            try (PreparedStatement insert = db.prepareStatement(
                    "insert into compat_jdbc_typed (client, n, result) select ?, ?, " + expression[0])) {
                for (int round = 0; round < 6; round++) {
                    insert.setInt(1, me);
                    insert.setInt(2, 100 * (round + 1) + which);
                    insert.setObject(3, expression[1]);
                    insert.setObject(4, expression[2]);
                    insert.executeUpdate();
                }
            }
        }
    }

    /** Texts that a log, which has no types, shows as it would show numbers. */
    static void untyped(Connection db, int me) throws SQLException {
        for (var expression : List.of("jsonb_build_array(?, ?)::text", "(? < ?)::text")) {
            try (PreparedStatement insert =
                    db.prepareStatement("insert into compat_jdbc_untyped select ?, " + expression)) {
                insert.setInt(1, me);
                insert.setString(2, "9");
                insert.setString(3, "10");
                insert.executeUpdate();
            }
        }
    }

    /** A prepared statement whose result changes its type, and prepared statements that are gone. */
    static void preparedAgain(Connection db, int me) throws SQLException {
        var table = "compat_jdbc_own_" + me;
        try (Statement statement = db.createStatement()) {
            statement.execute("create table " + table + " (a int, b text); insert into " + table
                    + " values (1, ''), (2, null)");
            try (PreparedStatement select = db.prepareStatement("select * from " + table + " where a = ?")) {
                // In a transaction, since a pooler may have prepared it on another server connection, too.
                db.setAutoCommit(false);
                for (int round = 0; round < 8; round++) {
                    if (round == 5) statement.execute("alter table " + table + " add c text default 'c'");
                    if (round == 7) statement.execute("deallocate all");
                    var savepoint = db.setSavepoint();
                    select.setInt(1, 1);
                    try (ResultSet rows = select.executeQuery()) {
                        rows.next();
                    } catch (SQLException error) {
                        check(error.getSQLState(), "0A000");
                        check(round, 5);
                        db.rollback(savepoint);
                    }
                }
                db.commit();
                db.setAutoCommit(true);
            }
            try (PreparedStatement update =
                    db.prepareStatement("update " + table + " set b = b || ? returning a, b")) {
                update.setString(1, "after");
                update.execute();
            }
        }
    }

    static void errors(Connection db) throws SQLException {
        for (int n = 0; n < 3; n++) {
            try (PreparedStatement divide = db.prepareStatement("select 1 / ?::int")) {
                divide.setInt(1, 0);
                divide.executeQuery();
                throw new AssertionError("a division by zero went well");
            } catch (SQLException error) {
                check(error.getSQLState(), "22012");
            }
        }
        check(db.isValid(30), true);
    }

    static void copy(Connection db, int me) throws Exception {
        var lines = IntStream.range(0, 1000).mapToObj(n -> me + "\tcopied " + n + "\n").toArray(String[]::new);
        var copy = db.unwrap(PGConnection.class).getCopyAPI();
        check(copy.copyIn("copy compat_jdbc_copied from stdin", new StringReader(String.join("", lines))), 1000L);
        var received = new StringWriter();
        copy.copyOut("copy (select * from compat_jdbc_copied where client = " + me
                + ") to stdout", received);
        var found = received.toString().split("(?<=\n)");
        Arrays.sort(found);
        Arrays.sort(lines);
        check(Arrays.equals(found, lines), true);
    }

    static void cancellation(Connection db) throws Exception {
        try (Statement sleep = db.createStatement()) {
            var canceller = new Thread(() -> {
                try {
                    Thread.sleep(300);
                    sleep.cancel();
                } catch (Exception error) {
                    throw new RuntimeException(error);
                }
            });
            canceller.start();
            try {
                sleep.execute("select pg_sleep(60)");
                throw new AssertionError("sleep was not cancelled");
            } catch (SQLException error) {
                check(error.getSQLState(), "57014");
            }
            canceller.join();
        }
    }

    static void check(Object found, Object expected) {
        if (!found.equals(expected)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }
}
