//! `howdah warm` by its commands, against a real server.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

const TABLES: &str = "
    CREATE TABLE orders AS SELECT n AS id, repeat('x', 200) AS pad FROM generate_series(1, 5000) n;
    CREATE TABLE items AS SELECT n AS id, repeat('y', 200) AS pad FROM generate_series(1, 500) n;";

fn cluster(test: &str) -> Option<Cluster> {
    or_say_why_not(test, Cluster::builder().start())
}

fn query(cluster: &Cluster, sql: &str) {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    let target = Target::resolve(&words, &Environment::empty()).unwrap();
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

/// The entry of a list of relations with that name.
fn relation<'a>(document: &'a Value, name: &str) -> &'a Value {
    let relations = document["relations"].as_array().unwrap();
    relations.iter().find(|row| row["relation"] == name).unwrap()
}

#[test]
fn what_was_dumped_can_be_read_and_compared() {
    let Some(cluster) = cluster("warm dump") else { return };
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
    assert_eq!(relation(&diff, "public.items")["stayed"], 0);
    assert_eq!(relation(&diff, "public.later")["left"], 0);
    assert!(relation(&diff, "public.later")["came"].as_u64().unwrap() > 100);
    let args = ["warm", "diff", "before", "after", "--min-stayed", "100"];
    howdah(folder.path()).args(args).assert().code(3);
    howdah(folder.path())
        .args(["warm", "diff", "after", "after", "--min-stayed", "100"])
        .assert()
        .code(0);

    // Again at the same place: the one before is kept.
    dump(folder.path(), &cluster, "before");
    assert!(json(folder.path(), &["warm", "info", "before.1"]) == info);
}

#[test]
fn an_image_goes_to_autoprewarm_and_back() {
    let Some(cluster) = cluster("warm export") else { return };
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
fn mistakes_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("blocks"), "<<1>>\n0,1664,1260,0,0\n").unwrap();
    fs::write(folder.path().join("cut"), "<<2>>\n0,1664,1260,0,0\n").unwrap();
    let told = |args: &[&str]| {
        let output = howdah(folder.path()).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        text(&output.stderr)
    };
    insta::assert_snapshot!(
        "warm_mistakes",
        [
            told(&["warm", "info", "blocks"]),
            told(&["warm", "info", "missing"]),
            told(&["warm", "import", "cut", "-o", "image"]),
            told(&["warm", "import", "blocks", "-o", "no/such/folder/image"]),
        ]
        .join("\n")
    );
    assert!(!folder.path().join("image").exists());
}

#[test]
fn a_role_without_rights_is_told_which_it_needs() {
    let Some(cluster) = cluster("warm rights") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, "CREATE ROLE watcher LOGIN");
    let uri = cluster.uri("postgres").replace("postgres@", "watcher@");
    let dump = |source: &str| {
        let args = ["warm", "dump", &uri, "-o", "image", "--source", source];
        howdah(folder.path()).args(args).output().unwrap()
    };
    let said = text(&dump("pg_buffercache").stderr);
    assert!(said.contains("CREATE EXTENSION pg_buffercache"), "{said}");
    query(&cluster, "CREATE EXTENSION pg_buffercache");
    let said = text(&dump("pg_buffercache").stderr);
    assert!(said.contains("GRANT pg_monitor"), "{said}");
    query(&cluster, "GRANT pg_monitor TO watcher");
    assert!(dump("pg_buffercache").status.success());
}

#[test]
fn advice_tells_what_fills_the_cache_and_what_would_fit() {
    for major in [14, 17, 18] {
        let builder = Cluster::builder().major(major).setting("shared_buffers", "16MB");
        let test = format!("warm advise on {major}");
        let Some(cluster) = or_say_why_not(&test, builder.start()) else { continue };
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
        // Its maps are pages, too.
        let length = orders["length"].as_u64().unwrap();
        assert!(length > 100 && orders["pages"] == sum && sum >= length, "{orders}");
        let alternatives = advice["alternatives"].as_array().unwrap();
        let verdicts: Vec<_> =
            alternatives.iter().map(|size| size["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts[2..], ["present", "no use", "no use"], "{major}");
        let candidates = advice["candidates"].as_array().unwrap();
        let place = |name: &str| candidates.iter().position(|row| row["relation"] == name).unwrap();
        assert!(place("public.orders") < candidates.len());
        assert!(candidates[place("public.orders")]["heat"].as_f64().unwrap() > 0.0);
        // Half a buffer of 8 kB is one touch of 4 kB; an entry of a page table has 8 bytes.
        let memory = &advice["memory"];
        assert_eq!(memory["first_touch_faults"], 4096);
        let bytes = memory["bytes"].as_u64().unwrap();
        assert_eq!(memory["table_bytes_per_session"], bytes / 4096 * 8);
        assert!(memory["table_bytes_measured"].as_u64().unwrap() > 0);
        assert_eq!(memory["huge_pages_in_use"].is_null(), major < 17, "{major}");
        let told = howdah(folder.path()).args(["warm", "advise", &uri]).output().unwrap();
        let told = text(&told.stdout);
        for words in ["WHAT FILLS IT", "OTHER SIZES", "WOULD FIT", "MEMORY", "public.orders"] {
            assert!(told.contains(words), "{words} is missing in\n{told}");
        }
    }
}

#[test]
fn a_server_that_nobody_can_restart_is_not_proved() {
    let folder = tempfile::tempdir().unwrap();
    let prove = |args: &[&str]| {
        let output = howdah(folder.path()).args(["warm", "prove"]).args(args).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = prove(&["postgresql://127.0.0.1:1/shop"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no command for that was given"), "{said}");
    assert!(said.contains("--restart-command 'systemctl restart postgresql'"), "{said}");
    assert_eq!(prove(&[]).0, Some(2));
    assert_eq!(prove(&["--lab", "--step", "0"]).0, Some(2));
}

#[test]
fn a_watch_that_is_switched_off_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let toml = "[warm.watch]\nenabled = false\noutput = \"images\"\ninterval = 60\n";
    fs::write(folder.path().join("howdah.toml"), toml).unwrap();
    let args = ["--config", "howdah.toml", "warm", "watch", "postgresql://127.0.0.1:1/shop"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("switched off"), "{said}");
    assert!(!folder.path().join("images").exists());
}

#[test]
fn sigterm_takes_a_last_image() {
    let Some(cluster) = cluster("warm watch") else { return };
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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !images.join("newest.cache").exists() {
        assert!(std::time::Instant::now() < deadline, "no image came");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    query(&cluster, "CREATE TABLE last AS SELECT generate_series(1, 50000) AS n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let info = json(folder.path(), &["warm", "info", "images/newest.cache"]);
    assert!(relation(&info, "public.last")["pages"].as_u64().unwrap() > 0);
    assert!(images.join("newest.cache.1").exists());
}

#[test]
fn an_image_is_loaded_and_its_exit_code_tells_whether_it_is_there() {
    let Some(mut cluster) = cluster("warm load") else { return };
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
    let loaded = load(&["--format", "json", "--min-resident", "99"]);
    assert_eq!(loaded.status.code(), Some(0), "{}", text(&loaded.stderr));
    let document: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    assert_eq!(document["seen_by"], "memory");
    let orders = relation(&document, "public.orders");
    assert!(orders["loaded"].as_u64().unwrap() > 100, "{orders}");
    assert_eq!(orders["ways"][0], "pg_prewarm");
    let check = load(&["--check", "--min-resident", "99"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stdout));
    assert!(text(&check.stdout).contains("100.0 % of the image is resident"));

    let empty = or_say_why_not("warm load, empty", Cluster::builder().start()).unwrap();
    let check = howdah(folder.path())
        .args(["warm", "load", "image", &empty.uri("postgres"), "--check", "--min-resident", "50"])
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(3), "{}", text(&check.stdout));
    assert!(text(&check.stdout).contains("of what was found and had room"));
    let unknown = load(&["--map-database", "stock=shop"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("hint: it has "), "{}", text(&unknown.stderr));

    query(&cluster, "DROP TABLE items");
    let told = text(&load(&[]).stdout);
    assert!(told.contains("public.items: no relation has this name now"), "{told}");
    let nobody = howdah(folder.path())
        .args(["warm", "load", "image", "postgresql://postgres@127.0.0.1:1/x", "--wait", "0"])
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn a_load_that_is_told_to_stop_goes_on_where_it_ended() {
    let Some(mut cluster) = cluster("warm load, stopped") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    query(&cluster, "CREATE EXTENSION pg_prewarm; CREATE EXTENSION pg_buffercache");
    query(&cluster, "CREATE TABLE more AS SELECT o.* FROM orders o, generate_series(1, 5)");
    dump(folder.path(), &cluster, "image");
    cluster.restart().unwrap();
    let uri = cluster.uri("postgres");
    // At this rate it takes several seconds.
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
    let words = Words::from_conninfo(&uri);
    let target = Target::resolve(&words, &Environment::empty()).unwrap();
    let mut client = Client::connect(&target).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while client.one_value(loaded).unwrap().as_deref() == Some("0") {
        assert!(std::time::Instant::now() < deadline, "nothing was loaded");
    }
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    let address = said.trim().rsplit_once("http://").unwrap().1.strip_suffix("/metrics").unwrap();
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
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("the same command goes on where it ended"), "{said}");
    let again = json(folder.path(), &["warm", "load", "image", &uri, "--min-resident", "99"]);
    let more = relation(&again, "public.more");
    assert!(more["resident"].as_u64().unwrap() > 0, "{more}");
    assert!(more["loaded"].as_u64().unwrap() > 0, "{more}");
    assert_eq!(again["share"], 1.0);
}

#[test]
fn a_damaged_or_foreign_image_is_told_before_a_server_is_asked() {
    let Some(cluster) = cluster("warm damaged") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    dump(folder.path(), &cluster, "image");
    let whole = fs::read(folder.path().join("image")).unwrap();
    let told = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).unwrap();
        let nobody = "postgresql://127.0.0.1:1/x";
        let output = howdah(folder.path()).args(["warm", "load", name, nobody]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = text(&output.stderr);
        assert!(said.contains("cannot open the image") && said.contains("hint:"), "{name}: {said}");
    };
    told("cut", &whole[..whole.len() / 2]);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    told("flipped", &flipped);
    told("foreign", b"PK\x03\x04 another kind of file");
    told("empty", b"");
}

#[test]
fn a_table_is_loaded_with_what_belongs_to_it() {
    let Some(mut cluster) = cluster("warm table") else { return };
    let folder = tempfile::tempdir().unwrap();
    query(&cluster, TABLES);
    query(&cluster, "CREATE EXTENSION pg_prewarm; CREATE INDEX orders_id ON orders (id)");
    cluster.restart().unwrap();
    let uri = cluster.uri("postgres");
    let table = |args: &[&str]| {
        howdah(folder.path()).args(["warm", "table", &uri]).args(args).output().unwrap()
    };
    let told = text(&table(&["orders"]).stdout);
    assert!(told.contains("public.orders\n") && told.contains("public.orders_id\n"), "{told}");
    assert!(told.lines().last().unwrap().ends_with("in all"), "{told}");
    assert_eq!(text(&table(&["items", "--last", "1"]).stdout).trim(), "2  public.items");
    assert_eq!(table(&["orders", "items", "--first", "1"]).status.code(), Some(2));
    let missing = table(&["missing"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("is named missing"), "{}", text(&missing.stderr));
}
