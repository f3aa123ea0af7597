//! Standing still by an operator's order: nobody gets a server, none is opened, and no time passes, so
//! that nothing is sent that was not under way before.

use super::Core;
use crate::{Io, time::Time};

impl Core {
    /// Stands still, or goes on: then who waits is served. While it stands still the worker reads from
    /// nobody, and calls with the time of the moment in which that began; so a suspension counts for
    /// no limit. What it says all the same (a client has come, a login is done, a connection broke) is
    /// taken note of.
    pub fn suspend(&mut self, suspend: bool, now: Time, io: &mut dyn Io) {
        self.is_suspended = suspend;
        if !suspend {
            self.gates_turned(now, io);
            self.tell_all_news(io);
        }
    }
}
