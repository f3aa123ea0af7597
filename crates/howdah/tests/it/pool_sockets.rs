//! `howdah pool` at sockets that somebody else opened, as systemd's socket activation does it.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener},
    },
    path::Path,
    process::{Child, Command, Output},
    time::Duration,
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use rustix::process::{Pid, Signal, kill_process};

use crate::text;

/// A pooler that is given its two descriptors under the numbers 3 and 4, with this said of them.
fn command(folder: &Path, first: OwnedFd, second: OwnedFd, said: &str) -> Command {
    // A shell has a process id that it can tell the program that takes its place.
    let script = format!(
        "exec 3<&0 4<&1 </dev/null >/dev/null; {said} exec \"$0\" pool --log-level=info --log-format=text --workers=2 \
         -c howdah.toml"
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, assert_cmd::cargo::cargo_bin!("howdah").to_str().unwrap()])
        .current_dir(folder)
        .env("HOME", folder)
        .env_remove("NOTIFY_SOCKET")
        .stdin(first)
        .stdout(second);
    command
}

const PASSED: &str = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=clients:local";

/// Settings that name a place where nobody may listen, since it is not to be used.
fn write_settings(folder: &Path, port: u16) {
    let settings = format!(
        "[pool]\nmode = 'transaction'\n[pool.listen]\naddresses = ['192.0.2.1']\nport = 1\n\
         unix-directories = ['/nowhere']\ntakeover = '{}/takeover'\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n[pool.databases.postgres]\nhosts = ['127.0.0.1:{port}']\n",
        folder.display()
    );
    fs::write(folder.join("howdah.toml"), settings).unwrap();
}

fn ask(host: &str, port: u16) -> String {
    let words = format!("host={host} port={port} dbname=postgres user=postgres connect_timeout=60");
    let environment = Environment::empty().with_os_user("tester");
    let target = Target::resolve(&Words::from_conninfo(&words), &environment).unwrap();
    let mut client = Client::connect(&target).unwrap();
    client.one_value("select 'served'").unwrap().unwrap()
}

fn end(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn sockets_that_were_passed_are_listened_at() {
    let server = Cluster::builder().setting("max_connections", "60").start();
    let Some(server) = or_say_why_not("passed sockets", server) else { return };
    let folder = tempfile::tempdir().unwrap();
    write_settings(folder.path(), server.port());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let path = folder.path().join(format!(".s.PGSQL.{port}"));
    let unix = UnixListener::bind(&path).unwrap();
    let notify = folder.path().join("notify");
    let notices = UnixDatagram::bind(&notify).unwrap();
    notices.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let log = folder.path().join("log");
    let start = || {
        let (tcp, unix) = (tcp.try_clone().unwrap().into(), unix.try_clone().unwrap().into());
        let mut command = command(folder.path(), tcp, unix, PASSED);
        let said = File::options().create(true).append(true).open(&log).unwrap();
        command.env("NOTIFY_SOCKET", &notify).stderr(said).spawn().unwrap()
    };
    // Who knocks before the pooler is there waits, twice: it may be restarted.
    for _ in 0..2 {
        let early = std::thread::spawn(move || ask("127.0.0.1", port));
        let pooler = start();
        assert_eq!(early.join().unwrap(), "served");
        let mut buffer = [0; 256];
        let length = notices.recv(&mut buffer).unwrap();
        assert_eq!(text(&buffer[..length]), "READY=1");
        assert_eq!(ask(folder.path().to_str().unwrap(), port), "served");
        end(pooler);
        notices.recv(&mut buffer).unwrap(); // STOPPING=1
        assert!(path.exists(), "the socket is not ours to remove");
    }
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("listening at the sockets that were passed"), "{said}");
    assert!(said.contains(&format!("listening: 127.0.0.1:{port}")), "{said}");

    // A process that takes over gets them, too, although settings do not name them.
    let mut old = start();
    let mut buffer = [0; 256];
    notices.recv(&mut buffer).unwrap();
    while !folder.path().join("takeover").exists() {
        std::thread::yield_now();
    }
    let mut taker = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
    taker.args(["pool", "--workers=2", "-c", "howdah.toml", "--takeover"]);
    taker.current_dir(folder.path()).env("HOME", folder.path()).env("NOTIFY_SOCKET", &notify);
    let taker = taker.stderr(File::options().append(true).open(&log).unwrap()).spawn().unwrap();
    assert!(old.wait().unwrap().success());
    assert_eq!(ask("127.0.0.1", port), "served");
    assert_eq!(ask(folder.path().to_str().unwrap(), port), "served");
    end(taker);
    assert!(path.exists());
}

#[test]
fn descriptors_that_are_no_sockets_are_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_settings(folder.path(), 1);
    let run = |said: &str| -> Output {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap().into();
        let file = File::create(folder.path().join("file")).unwrap().into();
        command(folder.path(), tcp, file, said).output().unwrap()
    };
    for (said, expected) in [
        (PASSED, "descriptor 4, named \"local\", is no stream socket that listens"),
        ("LISTEN_PID=$$ LISTEN_FDS=many", "LISTEN_FDS is \"many\""),
        // Another's: then the settings are followed, which cannot be.
        ("LISTEN_PID=1 LISTEN_FDS=2", "192.0.2.1"),
    ] {
        let output = run(said);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}
