//! `howdah pool` with systemd's socket activation.

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

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::{as_this_user, text};

/// A pooler that inherits two descriptors as 3 and 4, with these environment variables about them.
fn activated_command(folder: &Path, first: OwnedFd, second: OwnedFd, messages: &str) -> Command {
    // LISTEN_PID must be the pooler's process id, which is that of the shell that executes it.
    let script = format!(
        "exec 3<&0 4<&1 </dev/null >/dev/null; {messages} exec \"$0\" pool --log-level=info --log-format=text --workers=2 \
         {} -c howdah.toml",
        as_this_user()
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

const ACTIVATION: &str = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=clients:local";

/// Settings with unusable addresses: the activated sockets must be used instead.
fn write_settings(folder: &Path, port: u16) {
    let settings = format!(
        "[pool]\nmode = 'transaction'\n[pool.listen]\naddresses = ['192.0.2.1']\nport = 1\n\
         unix-directories = ['/nowhere']\ntakeover = '{}/takeover'\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n[pool.databases.postgres]\nhosts = ['127.0.0.1:{port}']\n",
        folder.display()
    );
    fs::write(folder.join("howdah.toml"), settings).unwrap();
}

fn query_pooler(host: &str, port: u16) -> String {
    let words = format!("host={host} port={port} dbname=postgres user=postgres connect_timeout=60");
    let environment = Environment::empty().with_os_user("tester");
    let target = ConnectTarget::resolve(&ConnParams::from_conninfo(&words), &environment).unwrap();
    let mut client = Client::connect(&target).unwrap();
    client.one_value("select 'served'").unwrap().unwrap()
}

fn terminate(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn activated_sockets_are_used_and_survive_takeover() {
    let server = Cluster::builder().setting("max_connections", "60").start();
    let Some(server) = skip_without_postgres("passed sockets", server) else { return };
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
        let mut command = activated_command(folder.path(), tcp, unix, ACTIVATION);
        let messages = File::options().create(true).append(true).open(&log).unwrap();
        command.env("NOTIFY_SOCKET", &notify).stderr(messages).spawn().unwrap()
    };
    // Clients that connect before the pooler runs wait; also after a restart.
    for _ in 0..2 {
        let early = std::thread::spawn(move || query_pooler("127.0.0.1", port));
        let pooler = start();
        assert_eq!(early.join().unwrap(), "served");
        let mut buffer = [0; 256];
        let length = notices.recv(&mut buffer).unwrap();
        assert_eq!(text(&buffer[..length]), "READY=1");
        assert_eq!(query_pooler(folder.path().to_str().unwrap(), port), "served");
        terminate(pooler);
        notices.recv(&mut buffer).unwrap(); // STOPPING=1
        assert!(path.exists(), "the pooler must not remove an activated socket");
    }
    let messages = fs::read_to_string(&log).unwrap();
    assert!(messages.contains("listening on passed sockets"), "{messages}");
    assert!(messages.contains(&format!("listening: 127.0.0.1:{port}")), "{messages}");

    // A takeover hands over the activated sockets, although the settings do not name them.
    let mut old = start();
    let mut buffer = [0; 256];
    notices.recv(&mut buffer).unwrap();
    wait_until("the takeover socket", Duration::from_secs(60), || {
        folder.path().join("takeover").exists()
    });
    let mut taker = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
    taker.args(["pool", &as_this_user(), "--workers=2", "-c", "howdah.toml", "--takeover"]);
    taker.current_dir(folder.path()).env("HOME", folder.path()).env("NOTIFY_SOCKET", &notify);
    let taker = taker.stderr(File::options().append(true).open(&log).unwrap()).spawn().unwrap();
    assert!(old.wait().unwrap().success());
    assert_eq!(query_pooler("127.0.0.1", port), "served");
    assert_eq!(query_pooler(folder.path().to_str().unwrap(), port), "served");
    terminate(taker);
    assert!(path.exists());
}

#[test]
fn invalid_activated_descriptors_are_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_settings(folder.path(), 1);
    let run = |messages: &str| -> Output {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap().into();
        let file = File::create(folder.path().join("file")).unwrap().into();
        activated_command(folder.path(), tcp, file, messages).output().unwrap()
    };
    for (messages, expected) in [
        (ACTIVATION, "descriptor 4, named \"local\", is not a listening stream socket"),
        ("LISTEN_PID=$$ LISTEN_FDS=many", "LISTEN_FDS is \"many\""),
        // LISTEN_PID of another process: then the unusable addresses of the settings count.
        ("LISTEN_PID=1 LISTEN_FDS=2", "192.0.2.1"),
    ] {
        let output = run(messages);
        let messages = text(&output.stderr);
        assert!(!output.status.success() && messages.contains(expected), "{messages}");
    }
}
