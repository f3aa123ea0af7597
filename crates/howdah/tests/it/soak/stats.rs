//! [`StatsSender`]: a client of the statsd server that counts what it sends.

use std::{
    fs,
    io::Write as _,
    net::{TcpStream, UdpSocket},
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread::JoinHandle,
    time::Duration,
};

use super::service::Service;

const PAUSE: Duration = Duration::from_millis(10);

/// A thread that counts up `soak.tcp` and `soak.udp` until it is stopped.
pub(super) struct StatsSender {
    thread: JoinHandle<u64>,
    stop: mpsc::Sender<()>,
}

impl StatsSender {
    pub(super) fn start(statsd: &Service) -> Self {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.connect(statsd.wait_for("receiving: udp ")).unwrap();
        let mut tcp = TcpStream::connect(statsd.wait_for("receiving: tcp ")).unwrap();
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            let mut sent = 0;
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                tcp.write_all(b"soak.tcp:1|c\n").unwrap();
                udp.send(b"soak.udp:1|c").unwrap();
                sent += 1;
            }
            sent
        };
        Self { thread: std::thread::spawn(work), stop }
    }

    /// Returns how often each counter was counted up.
    pub(super) fn finish(self) -> u64 {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

/// Returns the sum of a counter over all flushes.
pub(super) fn flushed(folder: &Path, counter: &str) -> u64 {
    let lines = fs::read_to_string(folder.join("stats.tsv")).unwrap();
    let prefix = format!("c\t{counter}\t");
    lines
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .map(|it| it.parse::<u64>().unwrap())
        .sum()
}
