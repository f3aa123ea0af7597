//! SUSPEND: clients get no server, no server is opened, and no timer runs, so that nothing new is
//! sent.

use super::Core;
use crate::{CoreIo, core::time::Time};

impl Core {
    /// Suspends or resumes the worker; on resuming, waiting clients are served. While suspended,
    /// the worker reads from no connection, and calls with the time at which the suspension
    /// started, so it counts against no timeout. Events that it still reports (a new client, a
    /// server login, a broken connection) are recorded.
    pub fn suspend(&mut self, suspend: bool, now: Time, io: &mut dyn CoreIo) {
        self.is_suspended = suspend;
        if !suspend {
            self.admin_state_changed(now, io);
            self.send_all_notifications(io);
        }
    }
}
