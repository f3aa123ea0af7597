//! Stacks of long events, for a person.

use std::io::{self, Write as _};

use howdah_probe::stacks::Stack;

use crate::context::Context;

/// A line for each function, the innermost first, and how far the stack is to be believed.
pub(super) fn tell(ctx: &Context, stack: Option<&Stack>) -> io::Result<()> {
    let Some(stack) = stack else { return Ok(()) };
    let mut out = ctx.stdout();
    for frame in &stack.frames {
        writeln!(out, "    at {frame}")?;
    }
    match stack.end.remark() {
        Some(remark) => writeln!(out, "    ({remark})"),
        None => Ok(()),
    }
}
