//! [`GaugeOrder`]: which process of a sender has set a gauge last.
//!
//! While a sender is replaced, batches of the old process may arrive after those of the new one: it
//! delivers its last ones, or hands over its spool. Within a process the order is that of the
//! sequence numbers.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, SystemTime},
};

use hashbrown::HashMap;

use super::BatchId;

/// The gauges that senders have set since they were started or replaced.
#[derive(Debug, Default)]
pub(crate) struct GaugeOrder {
    senders: HashMap<String, SenderGauges>,
    hasher: RandomState,
    /// Number of gauges of all senders.
    gauges: usize,
}

/// The processes of a sender, and the gauges that they have set.
#[derive(Debug)]
struct SenderGauges {
    /// The latest process.
    newest: u64,
    /// The time at which its first batch arrived.
    since: SystemTime,
    /// By the hash of the key, the latest process that has set the gauge.
    set_by: HashMap<u64, u64>,
}

impl GaugeOrder {
    /// Time after which no batch of a replaced process is expected.
    const EXPIRY: Duration = Duration::from_secs(600);
    /// Maximum number of gauges. The order of others is that of their arrival.
    const GAUGES_MAX: usize = 1_000_000;
    /// Maximum number of senders.
    const SENDERS_MAX: usize = 10_000;

    /// Records that a batch has arrived.
    pub(crate) fn record(&mut self, id: &BatchId, now: SystemTime) {
        let is_expired = |sender: &SenderGauges| {
            now.duration_since(sender.since).is_ok_and(|since| since >= Self::EXPIRY)
        };
        match self.senders.get_mut(&id.sender) {
            Some(sender) if id.incarnation > sender.newest => {
                (sender.newest, sender.since) = (id.incarnation, now);
            }
            Some(sender) => {
                if is_expired(sender) && !sender.set_by.is_empty() {
                    self.gauges -= sender.set_by.len();
                    sender.set_by = HashMap::new();
                }
            }
            None => {
                if self.senders.len() >= Self::SENDERS_MAX {
                    self.senders.retain(|_, sender| !is_expired(sender));
                    self.gauges = self.senders.values().map(|sender| sender.set_by.len()).sum();
                }
                if self.senders.len() < Self::SENDERS_MAX {
                    let (newest, since) = (id.incarnation, now);
                    let sender = SenderGauges { newest, since, set_by: HashMap::new() };
                    self.senders.insert(id.sender.clone(), sender);
                }
            }
        }
    }

    /// Whether the batch's operations on a gauge apply: no later process of the sender has set it.
    /// If they do and set the gauge, records that.
    pub(crate) fn applies(
        &mut self,
        id: &BatchId,
        key: &str,
        is_set: bool,
        now: SystemTime,
    ) -> bool {
        let Some(sender) = self.senders.get_mut(&id.sender) else { return true };
        let hash = self.hasher.hash_one(key);
        if sender.set_by.get(&hash).is_some_and(|last| *last > id.incarnation) {
            return false;
        }
        let is_expected = now.duration_since(sender.since).is_ok_and(|since| since < Self::EXPIRY);
        let is_known = sender.set_by.contains_key(&hash);
        if is_set && is_expected && (is_known || self.gauges < Self::GAUGES_MAX) {
            sender.set_by.insert(hash, id.incarnation);
            self.gauges += usize::from(!is_known);
        }
        true
    }
}

#[test]
fn later_process_has_set_the_gauge() {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let mut order = GaugeOrder::default();
    let mut applies = |sender: &str, incarnation, key: &str, is_set, seconds| {
        let id = BatchId { sender: sender.to_owned(), incarnation, sequence: 1 };
        order.record(&id, at(seconds));
        order.applies(&id, key, is_set, at(seconds))
    };
    assert!(applies("web1", 5, "g", true, 10));
    assert!(applies("web1", 7, "g", true, 11), "a later process");
    assert!(!applies("web1", 5, "g", true, 12), "its predecessor");
    assert!(!applies("web1", 5, "g", false, 12), "a change before the value was set");
    assert!(applies("web1", 5, "only.old", true, 12));
    assert!(applies("web1", 7, "changed", false, 12));
    assert!(applies("web1", 5, "changed", false, 12), "changes are added in any order");
    assert!(applies("web2", 5, "g", true, 12), "another sender");
    assert!(applies("web1", 6, "only.old", true, 13));
    assert!(applies("web1", 5, "g", true, 11 + 600), "two senders with one name");
    assert_eq!(order.gauges, 1, "{order:?}");
}
