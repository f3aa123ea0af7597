//! Advice about lost packets: which setting or sysctl to raise, and to which value.
//!
//! Compares two consecutive accounts and yields one log message per cause.

use std::fmt;

use crate::ledger::{LossAccount, SocketAccount};

/// A cause of packet loss since the previous account, with the current value of the sysctl that
/// limits the buffer or queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossAdvice {
    /// A socket's buffer was full.
    SocketBuffer {
        /// The socket's name.
        socket: String,
        /// Packets that this socket lost.
        dropped: u64,
        /// The size of the socket's buffer, without the kernel's doubling.
        buffer_bytes: u64,
        /// The current `net.core.rmem_max`, if readable.
        rmem_max: Option<u64>,
    },
    /// A processor's queue was full before the packets reached a socket.
    Backlog {
        /// Packets lost on the whole host.
        dropped: u64,
        /// The current `net.core.netdev_max_backlog`, if readable.
        netdev_max_backlog: Option<u64>,
    },
}

impl LossAdvice {
    /// Compares two accounts, and reads the sysctls if packets were lost.
    pub fn between(before: &LossAccount, now: &LossAccount) -> Vec<Self> {
        let lost = |socket: &SocketAccount| {
            let earlier = before.sockets.iter().find(|earlier| earlier.name == socket.name);
            let dropped = socket.drops_total - earlier.map_or(0, |earlier| earlier.drops_total);
            (dropped > 0).then(|| Self::SocketBuffer {
                socket: socket.name.clone(),
                dropped,
                buffer_bytes: socket.buffer_bytes,
                rmem_max: sysctl("rmem_max"),
            })
        };
        let mut advice: Vec<Self> = now.sockets.iter().filter_map(lost).collect();
        let dropped = now.backlog_drops_total.saturating_sub(before.backlog_drops_total);
        if dropped > 0 {
            let netdev_max_backlog = sysctl("netdev_max_backlog");
            advice.push(Self::Backlog { dropped, netdev_max_backlog });
        }
        advice
    }
}

impl fmt::Display for LossAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SocketBuffer { socket, dropped, buffer_bytes, rmem_max } => {
                let advised = buffer_bytes.saturating_mul(2).max(ADVISED_BUFFER_MIN);
                write!(
                    f,
                    "the kernel dropped {dropped} packets at {socket}, whose buffer of \
                     {buffer_bytes} bytes was full: set buffer-bytes = {advised} for it"
                )?;
                match rmem_max {
                    Some(max) if *max < advised => {
                        write!(f, " and run `sysctl -w net.core.rmem_max={advised}` (now {max})")
                    }
                    _ => Ok(()),
                }
            }
            Self::Backlog { dropped, netdev_max_backlog } => {
                let advised = netdev_max_backlog.unwrap_or(1000).saturating_mul(4);
                write!(
                    f,
                    "the host dropped {dropped} packets before they reached a socket: run `sysctl -w \
                     net.core.netdev_max_backlog={advised}`"
                )?;
                netdev_max_backlog.map_or(Ok(()), |now| write!(f, " (now {now})"))
            }
        }
    }
}

/// Minimum advised buffer size; a smaller one would soon be too small again.
const ADVISED_BUFFER_MIN: u64 = 8 << 20;

fn sysctl(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(drops_total: u64, backlog_drops_total: u64) -> LossAccount {
        let socket = SocketAccount {
            name: "udp 127.0.0.1:8125".to_owned(),
            drops_total,
            buffer_bytes: 4_194_304,
            ..SocketAccount::default()
        };
        LossAccount { sockets: vec![socket], backlog_drops_total }
    }

    #[test]
    fn no_new_loss_yields_no_advice() {
        assert_eq!(LossAdvice::between(&account(7, 3), &account(7, 3)), []);
    }

    #[test]
    fn full_buffer_advice_names_sysctl_and_value() {
        let LossAdvice::SocketBuffer { socket, dropped, buffer_bytes, rmem_max } =
            LossAdvice::between(&account(7, 0), &account(12, 0)).remove(0)
        else {
            panic!("the backlog lost nothing");
        };
        assert_eq!((dropped, buffer_bytes), (5, 4_194_304));
        assert!(rmem_max.is_some());
        let advice =
            LossAdvice::SocketBuffer { socket, dropped, buffer_bytes, rmem_max: Some(212_992) };
        assert_eq!(
            advice.to_string(),
            "the kernel dropped 5 packets at udp 127.0.0.1:8125, whose buffer of 4194304 bytes was \
             full: set buffer-bytes = 8388608 for it and run `sysctl -w net.core.rmem_max=8388608` \
             (now 212992)"
        );
    }

    #[test]
    fn full_backlog_advice_names_backlog_sysctl() {
        let advice = LossAdvice::Backlog { dropped: 9, netdev_max_backlog: Some(1000) };
        assert_eq!(
            advice.to_string(),
            "the host dropped 9 packets before they reached a socket: run `sysctl -w \
             net.core.netdev_max_backlog=4000` (now 1000)"
        );
        let advice = LossAdvice::between(&account(0, 1), &account(0, 10));
        assert!(matches!(advice[..], [LossAdvice::Backlog { dropped: 9, .. }]));
    }
}
