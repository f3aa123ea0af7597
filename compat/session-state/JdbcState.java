// Session state over pgJDBC: each client is a thread with a connection of its own.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

public class JdbcState {
    static final int CLIENTS = Integer.parseInt(System.getenv().getOrDefault("CLIENTS", "50"));
    static final int ROUNDS = 60;

    public static void main(String[] args) throws Exception {
        var threads = Executors.newFixedThreadPool(CLIENTS);
        List<Callable<Void>> clients =
                IntStream.range(0, CLIENTS).mapToObj(JdbcState::client).collect(Collectors.toList());
        try {
            for (Future<Void> client : threads.invokeAll(clients)) client.get();
        } finally {
            threads.shutdownNow();
        }
        System.out.println("pgJDBC " + org.postgresql.util.DriverInfo.DRIVER_VERSION + ", session state: "
                + CLIENTS + " clients ok");
    }

    static Callable<Void> client(int me) {
        return () -> {
            String url = "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/"
                    + System.getenv("PGDATABASE");
            try (Connection db = DriverManager.getConnection(
                    url, System.getenv("PGUSER"), System.getenv("PGPASSWORD"))) {
                db.setSchema("pg_catalog");
                run(db, "set lock_timeout = '" + (me + 100) + "ms'");
                for (int turn = 0; turn < ROUNDS; turn++) {
                    check(value(db, "select current_schema()"), "pg_catalog");
                    check(value(db, "show lock_timeout"), (me + 100) + "ms");
                    // The driver prepares a statement after five executions.
                    try (PreparedStatement sum = db.prepareStatement("select ?::int + ?")) {
                        sum.setInt(1, me);
                        sum.setInt(2, turn);
                        try (ResultSet row = sum.executeQuery()) {
                            row.next();
                            check(row.getString(1), Integer.toString(me + turn));
                        }
                    }
                    if (turn % 15 == me % 15) state(db, me);
                    Thread.sleep(30);
                }
            }
            return null;
        };
    }

    static void state(Connection db, int me) throws SQLException {
        switch (me % 3) {
            case 0 -> {
                run(db, "create temp table own as select " + me + " as n");
                check(value(db, "select n from pg_temp.own"), Integer.toString(me));
                run(db, "drop table pg_temp.own");
            }
            case 1 -> {
                try (PreparedStatement lock = db.prepareStatement("select pg_advisory_lock(?)")) {
                    lock.setLong(1, me);
                    lock.execute();
                }
                check(value(db, "select pg_advisory_unlock(" + me + ")"), "t");
            }
            default -> {
                // Its rows outlive the transaction: the driver reads them all, or uses a cursor of its own.
                db.setHoldability(ResultSet.HOLD_CURSORS_OVER_COMMIT);
                run(db, "begin; declare held cursor with hold for select " + me + "; commit");
                check(value(db, "fetch held"), Integer.toString(me));
                run(db, "close held");
            }
        }
    }

    static void run(Connection db, String sql) throws SQLException {
        try (Statement statement = db.createStatement()) {
            statement.execute(sql);
        }
    }

    static String value(Connection db, String sql) throws SQLException {
        try (Statement statement = db.createStatement(); ResultSet row = statement.executeQuery(sql)) {
            row.next();
            return row.getString(1);
        }
    }

    static void check(String found, String expected) {
        if (!found.equals(expected)) throw new AssertionError("found " + found + ", expected " + expected);
    }
}
