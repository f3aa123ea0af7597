// pgJDBC through the pooler: each client is a thread with a connection of its own.

import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.postgresql.PGConnection;

public class Check {
    static final int CLIENTS = Integer.parseInt(System.getenv().getOrDefault("CLIENTS", "50"));
    static final int ROUNDS = 20;

    public static void main(String[] args) throws Exception {
        try (Connection db = connect("jdbc"); Statement statement = db.createStatement()) {
            statement.execute("drop table if exists compat_jdbc");
            statement.execute("create table compat_jdbc (client int, note text)");
        }
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
        check(copy.copyIn("copy compat_jdbc from stdin", new StringReader(String.join("", lines))), 1000L);
        var received = new StringWriter();
        copy.copyOut("copy (select * from compat_jdbc where client = " + me
                + " and note like 'copied%') to stdout", received);
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
