//! What to do about lost packets: which sysctl, and the value to set.
//!
//! Two accounts, one after the other, in; a sentence for the log per cause out.

use std::fmt;

use crate::ledger::{Account, SocketAccount};

/// Packets were lost since the last account.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// A socket's buffer was full.
    SocketBuffer {
        /// Which.
        socket: String,
        /// Packets lost.
        dropped: u64,
        /// The buffer it has, as it would be asked for.
        buffer_bytes: u64,
        /// `net.core.rmem_max` now, if `/proc` says.
        rmem_max: Option<u64>,
    },
    /// A processor's queue was full before any socket saw the packets.
    Backlog {
        /// Packets lost, on the whole host.
        dropped: u64,
        /// `net.core.netdev_max_backlog` now, if `/proc` says.
        netdev_max_backlog: Option<u64>,
    },
}

impl Advice {
    /// Compares two accounts, and reads the sysctls if there is something to say.
    #[must_use]
    pub fn between(before: &Account, now: &Account) -> Vec<Self> {
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

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SocketBuffer { socket, dropped, buffer_bytes, rmem_max } => {
                let wanted = buffer_bytes.saturating_mul(2).max(SMALLEST_BUFFER);
                write!(
                    f,
                    "the kernel dropped {dropped} packets at {socket}, whose buffer of \
                     {buffer_bytes} bytes was full: set buffer-bytes = {wanted} for it"
                )?;
                match rmem_max {
                    Some(max) if *max < wanted => {
                        write!(f, " and run `sysctl -w net.core.rmem_max={wanted}` (now {max})")
                    }
                    _ => Ok(()),
                }
            }
            Self::Backlog { dropped, netdev_max_backlog } => {
                let wanted = netdev_max_backlog.unwrap_or(1000).saturating_mul(4);
                write!(
                    f,
                    "the host dropped {dropped} packets before any socket saw them: run `sysctl -w \
                     net.core.netdev_max_backlog={wanted}`"
                )?;
                netdev_max_backlog.map_or(Ok(()), |now| write!(f, " (now {now})"))
            }
        }
    }
}

/// Advising less than this would only delay the next advice.
const SMALLEST_BUFFER: u64 = 8 << 20;

fn sysctl(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(drops_total: u64, backlog_drops_total: u64) -> Account {
        let socket = SocketAccount {
            name: "udp 127.0.0.1:8125".to_owned(),
            drops_total,
            buffer_bytes: 4_194_304,
            ..SocketAccount::default()
        };
        Account { sockets: vec![socket], backlog_drops_total }
    }

    #[test]
    fn nothing_lost_since_last_time_is_no_news() {
        assert_eq!(Advice::between(&account(7, 3), &account(7, 3)), []);
    }

    #[test]
    fn a_full_buffer_is_told_with_the_sysctl_and_its_value() {
        let Advice::SocketBuffer { socket, dropped, buffer_bytes, rmem_max } =
            Advice::between(&account(7, 0), &account(12, 0)).remove(0)
        else {
            panic!("the backlog lost nothing");
        };
        assert_eq!((dropped, buffer_bytes), (5, 4_194_304));
        assert!(rmem_max.is_some());
        let advice =
            Advice::SocketBuffer { socket, dropped, buffer_bytes, rmem_max: Some(212_992) };
        assert_eq!(
            advice.to_string(),
            "the kernel dropped 5 packets at udp 127.0.0.1:8125, whose buffer of 4194304 bytes was \
             full: set buffer-bytes = 8388608 for it and run `sysctl -w net.core.rmem_max=8388608` \
             (now 212992)"
        );
    }

    #[test]
    fn a_full_backlog_is_another_sysctl() {
        let advice = Advice::Backlog { dropped: 9, netdev_max_backlog: Some(1000) };
        assert_eq!(
            advice.to_string(),
            "the host dropped 9 packets before any socket saw them: run `sysctl -w \
             net.core.netdev_max_backlog=4000` (now 1000)"
        );
        let found = Advice::between(&account(0, 1), &account(0, 10));
        assert!(matches!(found[..], [Advice::Backlog { dropped: 9, .. }]));
    }
}
