//! Combines several packet observers into one [`PacketObserver`].

use crate::receiver::{ObserverFactory, PacketObserver};

struct ObserverList(Vec<Box<dyn PacketObserver>>);

/// Creates an observer from each factory, plus a message log if `dump`; `None` if there are none.
pub(super) fn combine(
    factories: &[ObserverFactory],
    dump: bool,
) -> Option<Box<dyn PacketObserver>> {
    let mut observers: Vec<Box<dyn PacketObserver>> =
        factories.iter().map(|create| create()).collect();
    if dump {
        observers.push(Box::new(PacketDump));
    }
    match observers.len() {
        0 => None,
        1 => observers.pop(),
        _ => Some(Box::new(ObserverList(observers))),
    }
}

impl PacketObserver for ObserverList {
    fn packet(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|observer| observer.packet(bytes));
    }

    fn batch_finished(&mut self) {
        self.0.iter_mut().for_each(|observer| observer.batch_finished());
    }
}

/// The observer for the setting `dump-messages`, which logs every non-empty line.
struct PacketDump;

impl PacketObserver for PacketDump {
    fn packet(&mut self, bytes: &[u8]) {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            tracing::info!(line = %String::from_utf8_lossy(line).escape_debug(), "received");
        }
    }
}
