//! SUSPEND: clients get no server, no server is opened, and no timer runs, so that no new data is
//! sent.

use super::Core;
use crate::{CoreIo, time::Time};

impl Core {
    /// Suspends or resumes the worker; on resuming, waiting clients are served. While suspended,
    /// the worker must not read from any connection, and must pass the time at which the suspension
    /// started to all calls, so that the suspension does not count against timeouts. Events that it
    /// still reports (a new client, a server login, a broken connection) are handled as far as
    /// possible.
    pub fn suspend(&mut self, suspend: bool, now: Time, io: &mut dyn CoreIo) {
        self.is_suspended = suspend;
        if !suspend {
            self.admin_state_changed(now, io);
            self.send_all_notifications(io);
        }
    }
}
