//! Server processes: their core, CPU time, memory and socket statistics.
#![allow(unsafe_code, reason = "getrusage, because rustix' clocks do not run under valgrind")]

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_setaffinity},
};

/// The core for the sender and this process.
pub(crate) const SENDER_CORE: usize = 0;
/// The core for the measured server.
pub(crate) const SERVER_CORE: usize = 1;

/// CPU time of this process.
pub(crate) fn cpu_time() -> Duration {
    // SAFETY: a plain C struct of integers, for which all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`, which the kernel fills.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let of = |time: libc::timeval| {
        let micros = time.tv_sec * 1_000_000 + time.tv_usec;
        Duration::from_micros(micros.unsigned_abs())
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Pins this thread and its future children to one core.
pub(crate) fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to core {core}"))
}

/// A running server, killed when dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    port: u16,
}

impl ServerProcess {
    /// Starts the server on its core and waits until its socket is open.
    pub(crate) fn start(mut command: Command, port: u16) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        pin(SERVER_CORE)?;
        let child = command.spawn();
        pin(SENDER_CORE)?;
        let child = child.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut server = Self { child, port };
        let end = Instant::now() + Duration::from_secs(30);
        while UdpSocketStats::at(port).is_none() {
            if let Some(status) = server.child.try_wait()? {
                bail!(
                    "{:?} exited with {status} before it opened its socket",
                    command.get_program()
                );
            }
            anyhow::ensure!(
                Instant::now() < end,
                "{:?} did not open its socket within 30 s",
                command.get_program()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// CPU time of all threads so far, including those that have exited.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        // proc(5): utime and stime are the 14th and 15th fields, counted in hundredths of a second;
        // the second field is the name, which may contain spaces.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
        let (user, system) =
            (times.next().context("no utime")??, times.next().context("no stime")??);
        Ok(Duration::from_millis(10 * (user + system)))
    }

    /// Resident memory in MB: current and peak.
    pub(crate) fn memory_mb(&self) -> anyhow::Result<(u64, u64)> {
        let (current, peak) = self.memory_kb()?;
        Ok((current / 1024, peak / 1024))
    }

    /// Resident memory in kB: current and peak.
    pub(crate) fn memory_kb(&self) -> anyhow::Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kb =
                line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
            kb.with_context(|| format!("no {name}"))
        };
        Ok((of("VmRSS:")?, of("VmHWM:")?))
    }

    /// Current statistics of the server's socket.
    pub(crate) fn socket(&self) -> anyhow::Result<UdpSocketStats> {
        UdpSocketStats::at(self.port).context("the server's socket is gone")
    }

    /// Waits up to a minute until the socket's buffer is empty; returns whether it is.
    pub(crate) fn wait_until_drained(&self) -> anyhow::Result<bool> {
        let end = Instant::now() + Duration::from_secs(60);
        while self.socket()?.unread_bytes > 0 {
            if Instant::now() > end {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(true)
    }

    /// Sends SIGTERM; the drop kills the process if it is still running ten seconds later.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let end = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait()?.is_none() && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A UDP socket as listed in `/proc/net/udp`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UdpSocketStats {
    /// Memory used by unread packets.
    pub(crate) unread_bytes: u64,
    /// Packets dropped at the socket.
    pub(crate) drops: u64,
}

impl UdpSocketStats {
    /// The sum over all sockets bound to `port`; `None` if there are none.
    fn at(port: u16) -> Option<Self> {
        let port = format!("{port:04X}");
        let mut total = None;
        for table in ["/proc/net/udp", "/proc/net/udp6"] {
            for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
                let fields: Vec<_> = line.split_ascii_whitespace().collect();
                let [_, local, _, _, queues, .., drops] = fields[..] else { continue };
                if local.rsplit(':').next() != Some(&port) {
                    continue;
                }
                let queue = queues.rsplit(':').next().unwrap_or_default();
                let sum: &mut Self = total.get_or_insert_default();
                sum.unread_bytes += u64::from_str_radix(queue, 16).ok()?;
                sum.drops += drops.parse::<u64>().ok()?;
            }
        }
        total
    }
}

/// Packets dropped on the whole host before they reached a socket.
pub(crate) fn backlog_drops() -> u64 {
    let table = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(1)?, 16).ok();
    table.lines().filter_map(dropped).sum()
}

/// A currently free UDP port.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Raised `net.core.rmem_default` and `rmem_max`, for servers that do not set their own buffer
/// size. Dropping it restores the old values.
#[derive(Debug)]
pub(crate) struct RaisedBufferLimits(Vec<(&'static str, String)>);

impl RaisedBufferLimits {
    /// Sets both limits to `bytes`; `None` without permission.
    pub(crate) fn raise(bytes: usize) -> Option<Self> {
        let mut before = Self(Vec::new());
        for path in ["/proc/sys/net/core/rmem_max", "/proc/sys/net/core/rmem_default"] {
            let value = fs::read_to_string(path).ok()?;
            fs::write(path, bytes.to_string()).ok()?;
            before.0.push((path, value));
        }
        Some(before)
    }
}

impl Drop for RaisedBufferLimits {
    fn drop(&mut self) {
        for (path, value) in &self.0 {
            let _ = fs::write(path, value);
        }
    }
}
