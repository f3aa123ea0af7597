//! `howdah warm` with a real server.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{BinariesSearch, Cluster, skip_without_postgres, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

const TABLES: &str = "
    CREATE TABLE orders AS SELECT n AS id, repeat('x', 200) AS pad FROM generate_series(1, 5000) n;
    CREATE TABLE items AS SELECT n AS id, repeat('y', 200) AS pad FROM generate_series(1, 500) n;";

/// Maximum time for a process to react.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

fn start_cluster(test: &str) -> Option<Cluster> {
    skip_without_postgres(test, Cluster::builder().start())
}

fn query(cluster: &Cluster, sql: &str) {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
    Client::connect(&target).unwrap().query(sql).unwrap();
}

fn dump(folder: &Path, cluster: &Cluster, image: &str) {
    let uri = cluster.uri("postgres");
    howdah(folder).args(["warm", "dump", &uri, "-o", image, "--keep", "1"]).assert().success();
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let output = howdah(folder).args(args).args(["--format", "json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The entry of a relation in a JSON document.
fn relation<'a>(document: &'a Value, name: &str) -> &'a Value {
    let relations = document["relations"].as_array().unwrap();
    relations.iter().find(|row| row["relation"] == name).unwrap()
}

#[test]
fn dumped_image_can_be_read_and_compared() {
    let Some(cluster) = start_cluster("warm dump") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    dump(folder.path(), &cluster, "before");
    let info = json(folder.path(), &["warm", "info", "before"]);
    assert_eq!(info["source"], "memory");
    let orders = relation(&info, "public.orders");
    assert_eq!(
        (&orders["database"], &orders["logged"]),
        (&Value::from("postgres"), &Value::from(true))
    );
    assert_eq!(orders["pages"].as_u64().unwrap() > 100, orders["dirty"].as_u64().unwrap() > 100);

    query(&cluster, "DROP TABLE items; CREATE TABLE later AS SELECT * FROM orders");
    dump(folder.path(), &cluster, "after");
    let diff = json(folder.path(), &["warm", "diff", "before", "after"]);
    assert_eq!(relation(&diff, "public.items")["kept"], 0);
    assert_eq!(relation(&diff, "public.later")["removed"], 0);
    assert!(relation(&diff, "public.later")["added"].as_u64().unwrap() > 100);
    let args = ["warm", "diff", "before", "after", "--min-kept", "100"];
    howdah(folder.path()).args(args).assert().code(3);
    howdah(folder.path())
        .args(["warm", "diff", "after", "after", "--min-kept", "100"])
        .assert()
        .code(0);

    // A second dump to the same path keeps the previous image.
    dump(folder.path(), &cluster, "before");
    assert!(json(folder.path(), &["warm", "info", "before.1"]) == info);
}

#[test]
fn image_round_trips_through_autoprewarm_format() {
    let Some(cluster) = start_cluster("warm export") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    dump(folder.path(), &cluster, "image");
    let path = folder.path();
    howdah(path).args(["warm", "export", "image", "-o", "autoprewarm.blocks"]).assert().success();
    howdah(path).args(["warm", "import", "autoprewarm.blocks", "-o", "again"]).assert().success();
    howdah(path).args(["warm", "export", "again", "-o", "blocks"]).assert().success();
    let blocks = |name: &str| fs::read(path.join(name)).unwrap();
    assert!(blocks("blocks") == blocks("autoprewarm.blocks"));
    let limited = howdah(path).args(["warm", "export", "image", "--limit", "7"]).output().unwrap();
    assert_eq!(text(&limited.stdout).lines().count(), 8);
}

#[test]
fn errors_have_hints() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("blocks"), "<<1>>\n0,1664,1260,0,0\n").unwrap();
    fs::write(folder.path().join("cut"), "<<2>>\n0,1664,1260,0,0\n").unwrap();
    let report = |args: &[&str]| {
        let output = howdah(folder.path()).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        text(&output.stderr)
    };
    insta::assert_snapshot!(
        "warm_mistakes",
        [
            report(&["warm", "info", "blocks"]),
            report(&["warm", "info", "missing"]),
            report(&["warm", "import", "cut", "-o", "image"]),
            report(&["warm", "import", "blocks", "-o", "no/such/folder/image"]),
        ]
        .join("\n")
    );
    assert!(!folder.path().join("image").exists());
}

#[test]
fn missing_privileges_are_reported_with_remedy() {
    let Some(cluster) = start_cluster("warm rights") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, "CREATE ROLE watcher LOGIN");
    let uri = cluster.uri("postgres").replace("postgres@", "watcher@");
    let dump = |source: &str| {
        let args = ["warm", "dump", &uri, "-o", "image", "--source", source];
        howdah(folder.path()).args(args).output().unwrap()
    };
    let messages = text(&dump("pg_buffercache").stderr);
    assert!(messages.contains("CREATE EXTENSION pg_buffercache"), "{messages}");
    query(&cluster, "CREATE EXTENSION pg_buffercache");
    let messages = text(&dump("pg_buffercache").stderr);
    assert!(messages.contains("GRANT pg_monitor"), "{messages}");
    query(&cluster, "GRANT pg_monitor TO watcher");
    assert!(dump("pg_buffercache").status.success());
}

#[test]
fn advise_reports_cache_usage_and_candidates() {
    for major in [14, 17, 18] {
        let builder = Cluster::builder().major(major).setting("shared_buffers", "16MB");
        let test = format!("warm advise on {major}");
        let Some(cluster) = skip_without_postgres(&test, builder.start()) else { continue };
        let folder = tempfile::tempdir().unwrap();
        query(&cluster, TABLES);
        query(&cluster, "CREATE TABLE cold AS SELECT * FROM orders");
        query(&cluster, "VACUUM ANALYZE cold, orders");
        query(&cluster, "SELECT count(*) FROM orders; SELECT count(*) FROM orders");
        let uri = cluster.uri("postgres");
        let advice = json(folder.path(), &["warm", "advise", &uri]);
        assert_eq!(advice["buffers"], 2048, "{major}");
        let orders = relation(&advice, "public.orders");
        let usage = orders["usage"].as_array().unwrap();
        let sum: u64 = usage.iter().map(|count| count.as_u64().unwrap()).sum();
        // The pages include the free space and visibility maps.
        let length = orders["length"].as_u64().unwrap();
        assert!(length > 100 && orders["pages"] == sum && sum >= length, "{orders}");
        let alternatives = advice["alternatives"].as_array().unwrap();
        let verdicts: Vec<_> =
            alternatives.iter().map(|size| size["verdict"].as_str().unwrap()).collect();
        // Buffers are free, but a server that just started does not show that they stay free.
        assert_eq!(verdicts[2..], ["present", "not known yet", "not known yet"], "{major}");
        assert!(verdicts[..2].iter().all(|verdict| *verdict != "enough"), "{verdicts:?}");
        assert!(advice["cache_age_seconds"].as_f64().unwrap() < 3600.0);
        for size in alternatives {
            let loses = size["loses_reused"].as_u64().unwrap() > 0;
            assert_eq!(loses, size["verdict"] == "too small", "{size}");
        }
        let candidates = advice["candidates"].as_array().unwrap();
        let place = |name: &str| candidates.iter().position(|row| row["relation"] == name).unwrap();
        assert!(place("public.orders") < candidates.len());
        assert!(candidates[place("public.orders")]["heat"].as_f64().unwrap() > 0.0);
        // A buffer of 8 kB is two memory pages of 4 kB; an entry of a page table has 8 bytes.
        let memory = &advice["memory"];
        assert_eq!(memory["first_touch_faults"], 4096);
        let bytes = memory["bytes"].as_u64().unwrap();
        assert_eq!(memory["table_bytes_per_session"], bytes / 4096 * 8);
        assert!(memory["table_bytes_measured"].as_u64().unwrap() > 0);
        assert_eq!(memory["huge_pages_in_use"].is_null(), major < 17, "{major}");
        let report = howdah(folder.path()).args(["warm", "advise", &uri]).output().unwrap();
        let report = text(&report.stdout);
        for words in
            ["CACHED RELATIONS", "OTHER CACHE SIZES", "WOULD FIT", "MEMORY", "public.orders"]
        {
            assert!(report.contains(words), "{words} is missing in\n{report}");
        }
        assert!(report.contains("which is less than 24 h"), "{report}");
        let (_, fitting) = report.split_once("THAT WOULD FIT, largest first").unwrap();
        // The two largest ones; catalogs come after them.
        let first: Vec<_> = fitting.lines().skip(2).take(2).collect();
        assert!(first.iter().all(|line| line.contains(" public.")), "{report}");
        assert!(fitting.contains("of one page"), "{report}");
    }
}

#[test]
fn benchmark_requires_a_restart_command() {
    let folder = tempfile::tempdir().unwrap();
    let benchmark = |args: &[&str]| {
        let output = howdah(folder.path()).args(["warm", "benchmark"]).args(args).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, messages) = benchmark(&["postgresql://127.0.0.1:1/shop"]);
    assert_eq!(code, Some(2), "{messages}");
    assert!(messages.contains("no command for that was given"), "{messages}");
    assert!(messages.contains("such as 'systemctl restart postgresql'"), "{messages}");
    assert_eq!(benchmark(&[]).0, Some(2));
    assert_eq!(benchmark(&["--lab", "--step", "0"]).0, Some(2));
}

#[test]
fn benchmark_of_two_runs_has_figures_but_no_verdict() {
    let test = "benchmark of two runs";
    let search = BinariesSearch::new();
    if skip_without_postgres(test, search.find()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let args = ["--lab", "--runs", "2", "--scale", "1", "--duration", "1s", "--format", "json"];
    let output = howdah(folder.path())
        .args(["warm", "benchmark", "-o", "results"])
        .args(args)
        .output()
        .unwrap();
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{messages}");
    assert!(messages.contains("run 2 of 2, howdah: restarting, then 1 s; about "), "{messages}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["version"], &document["verdict"]), (&2.into(), &"not comparable".into()));
    let obstacles = document["obstacles"].as_array().unwrap();
    let has_few_runs = |it: &Value| it.as_str().unwrap().starts_with("2 of at least 3 runs");
    assert!(obstacles.iter().any(has_few_runs), "{obstacles:?}");
    // The order of the methods is rotated.
    let orders: Vec<_> = document["runs"].as_array().unwrap().iter().collect();
    let method = |run: usize, at: usize| orders[run]["measurements"][at]["method"].clone();
    assert_eq!(method(0, 1), method(1, 0));
    let results = folder.path().join("results");
    let steps = fs::read_to_string(results.join("steps.csv")).unwrap();
    assert!(steps.starts_with("run,order,method,seconds,"), "{steps}");
    assert_eq!(steps.lines().count() % 8, 1, "four steps in each of two runs");
    let page = fs::read_to_string(results.join("benchmark.html")).unwrap();
    assert!(page.contains("<span class=\"badge warn\">not comparable</span>"));
}

#[test]
fn disabled_watch_exits_successfully() {
    let folder = tempfile::tempdir().unwrap();
    let toml = "[warm.watch]\nenabled = false\noutput = \"images\"\ninterval = 60\n";
    fs::write(folder.path().join("howdah.toml"), toml).unwrap();
    let args = ["--config", "howdah.toml", "warm", "watch", "postgresql://127.0.0.1:1/shop"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{messages}");
    assert!(messages.contains("disabled: enabled is false"), "{messages}");
    assert!(!folder.path().join("images").exists());
}

#[test]
fn sigterm_writes_a_last_image() {
    let Some(cluster) = start_cluster("warm watch") else { return };
    query(&cluster, TABLES);
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["warm", "watch", &cluster.uri("postgres"), "-o"])
        .arg(&images)
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the first image", TIMEOUT, || images.join("newest.cache").exists());
    query(&cluster, "CREATE TABLE last AS SELECT generate_series(1, 50000) AS n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let info = json(folder.path(), &["warm", "info", "images/newest.cache"]);
    assert!(relation(&info, "public.last")["pages"].as_u64().unwrap() > 0);
    assert!(images.join("newest.cache.1").exists());
}

#[test]
fn load_exit_code_reports_residency() {
    let Some(mut cluster) = start_cluster("warm load") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    query(&cluster, "CREATE EXTENSION pg_prewarm");
    dump(folder.path(), &cluster, "image");
    cluster.restart().unwrap();
    let uri = cluster.uri("postgres");
    let load = |args: &[&str]| {
        howdah(folder.path()).args(["warm", "load", "image", &uri]).args(args).output().unwrap()
    };
    let check = load(&["--check", "--min-resident", "99"]);
    assert_eq!(check.status.code(), Some(3), "{}", text(&check.stdout));
    let check = load(&["--check", "--format", "json"]);
    let document: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(document["interrupted"], false, "a check loads nothing");
    let loaded = load(&["--format", "json", "--min-resident", "99"]);
    assert_eq!(loaded.status.code(), Some(0), "{}", text(&loaded.stderr));
    let document: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    assert_eq!(document["measured_by"], "memory");
    let orders = relation(&document, "public.orders");
    assert!(orders["loaded"].as_u64().unwrap() > 100, "{orders}");
    assert_eq!(orders["methods"][0], "pg_prewarm");
    let check = load(&["--check", "--min-resident", "99"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stdout));
    assert!(text(&check.stdout).contains("100.0 % of the image is resident"));

    let empty = skip_without_postgres("warm load, empty", Cluster::builder().start()).unwrap();
    let check = howdah(folder.path())
        .args(["warm", "load", "image", &empty.uri("postgres"), "--check", "--min-resident", "50"])
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(3), "{}", text(&check.stdout));
    assert!(text(&check.stdout).contains("of the pages that were found and had room"));
    let unknown = load(&["--map-database", "stock=shop"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("hint: it has "), "{}", text(&unknown.stderr));

    query(&cluster, "DROP TABLE items");
    let report = text(&load(&[]).stdout);
    assert!(report.contains("public.items: no relation has this name"), "{report}");
    let unreachable = howdah(folder.path())
        .args(["warm", "load", "image", "postgresql://postgres@127.0.0.1:1/x", "--wait", "0"])
        .output()
        .unwrap();
    assert_eq!(unreachable.status.code(), Some(1));
}

#[test]
fn interrupted_load_resumes_where_it_stopped() {
    let Some(mut cluster) = start_cluster("warm load, stopped") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    query(&cluster, "CREATE EXTENSION pg_prewarm; CREATE EXTENSION pg_buffercache");
    query(&cluster, "CREATE TABLE more AS SELECT o.* FROM orders o, generate_series(1, 5)");
    dump(folder.path(), &cluster, "image");
    cluster.restart().unwrap();
    let uri = cluster.uri("postgres");
    // The rate limit makes the load take several seconds.
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["warm", "load", "image", &uri, "--max-rate", "1MB", "--metrics", "127.0.0.1:0"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let loaded = "SELECT count(*) FROM pg_buffercache WHERE relforknumber = 0
                  AND relfilenode = pg_relation_filenode('more')";
    let words = ConnParams::from_conninfo(&uri);
    let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
    let mut client = Client::connect(&target).unwrap();
    wait_until("loaded pages", TIMEOUT, || {
        client.one_value(loaded).unwrap().as_deref() != Some("0")
    });
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut messages = String::new();
    stderr.read_line(&mut messages).unwrap();
    let address =
        messages.trim().rsplit_once("http://").unwrap().1.strip_suffix("/metrics").unwrap();
    let mut scrape = TcpStream::connect(address).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    scrape.read_to_string(&mut metrics).unwrap();
    let value = |name: &str| {
        let line =
            metrics.lines().find(|line| line.starts_with(&format!("{name}{{server="))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let (planned, done) =
        (value("howdah_warm_planned_pages"), value("howdah_warm_processed_pages"));
    assert!(planned > 500.0 && done < planned, "{done} of {planned}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    stderr.read_to_string(&mut messages).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{messages}");
    assert!(messages.contains("run the same command again to continue"), "{messages}");
    let again = json(folder.path(), &["warm", "load", "image", &uri, "--min-resident", "99"]);
    let more = relation(&again, "public.more");
    assert!(more["resident"].as_u64().unwrap() > 0, "{more}");
    assert!(more["loaded"].as_u64().unwrap() > 0, "{more}");
    assert_eq!(again["share"], 1.0);
}

#[test]
fn damaged_image_is_refused_before_connecting() {
    let Some(cluster) = start_cluster("warm damaged") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    dump(folder.path(), &cluster, "image");
    let whole = fs::read(folder.path().join("image")).unwrap();
    let report = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).unwrap();
        let unreachable = "postgresql://127.0.0.1:1/x";
        let output =
            howdah(folder.path()).args(["warm", "load", name, unreachable]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let messages = text(&output.stderr);
        assert!(
            messages.contains("cannot open the image") && messages.contains("hint:"),
            "{name}: {messages}"
        );
    };
    report("cut", &whole[..whole.len() / 2]);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    report("flipped", &flipped);
    report("foreign", b"PK\x03\x04 another kind of file");
    report("empty", b"");
}

#[test]
fn table_is_loaded_with_indexes_and_toast() {
    let Some(mut cluster) = start_cluster("warm table") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    query(&cluster, "CREATE EXTENSION pg_prewarm; CREATE INDEX orders_id ON orders (id)");
    cluster.restart().unwrap();
    let uri = cluster.uri("postgres");
    let table = |args: &[&str]| {
        howdah(folder.path()).args(["warm", "table", &uri]).args(args).output().unwrap()
    };
    let report = text(&table(&["orders"]).stdout);
    assert!(
        report.contains("public.orders\n") && report.contains("public.orders_id\n"),
        "{report}"
    );
    assert!(report.lines().last().unwrap().ends_with("total"), "{report}");
    assert_eq!(text(&table(&["items", "--last", "1"]).stdout).trim(), "2  public.items");
    assert_eq!(table(&["orders", "items", "--first", "1"]).status.code(), Some(2));
    let missing = table(&["missing"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("matches missing"), "{}", text(&missing.stderr));
}
