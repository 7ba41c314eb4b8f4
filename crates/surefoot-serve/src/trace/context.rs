//! Which span something belongs to, and the header `traceparent` in which W3C's trace context passes that on.

use std::fmt;

/// A span of a trace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace; not zero.
    pub trace: u128,
    /// The span; not zero.
    pub span: u64,
    /// Whether spans of this trace are recorded.
    pub is_sampled: bool,
}

impl fmt::Debug for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}", self.trace, self.span)
    }
}

impl SpanContext {
    /// The first span of a new trace.
    pub fn root() -> Self {
        Self { trace: fastrand::u128(1..), span: fastrand::u64(1..), is_sampled: true }
    }

    /// A new span of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span: fastrand::u64(1..), ..*self }
    }

    /// The span that a `traceparent` names: `00-TRACE-SPAN-FLAGS`, in lower-case hexadecimal digits. None if it has
    /// another form, which is then to be ignored.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let version = digits(parts.next()?, 2)?;
        let trace = digits(parts.next()?, 32)?;
        let span = digits(parts.next()?, 16)?;
        let flags = digits(parts.next()?, 2)?;
        let is_known = match version {
            0 => parts.next().is_none(),
            // Later versions may have more parts.
            1..0xff => true,
            _ => false,
        };
        let context = Self { trace, span: u64::try_from(span).ok()?, is_sampled: flags & 1 == 1 };
        (is_known && trace != 0 && span != 0).then_some(context)
    }
}

fn digits(text: &str, count: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == count && text.bytes().all(is_digit))
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_traceparent_is_read_as_w3c_writes_it() {
        let read = SpanContext::parse(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        assert_eq!(format!("{read:?}"), format!("{TRACE}-b7ad6b7169203331"));
        assert!(read.is_sampled);
        assert!(
            !SpanContext::parse(&format!("00-{TRACE}-b7ad6b7169203331-00")).unwrap().is_sampled
        );
        assert!(SpanContext::parse(&format!("01-{TRACE}-b7ad6b7169203331-01-more")).is_some());
        let zero = "0".repeat(32);
        for wrong in [
            String::new(),
            format!("00-{TRACE}-b7ad6b7169203331"),
            format!("00-{TRACE}-b7ad6b7169203331-01-more"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
            format!("00-{zero}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-b7ad6b716920333-01"),
        ] {
            assert_eq!(SpanContext::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn children_are_other_spans_of_the_same_trace() {
        let root = SpanContext::root();
        let child = root.child();
        assert_eq!(child.trace, root.trace);
        assert_ne!(child.span, root.span);
        assert_ne!(SpanContext::root().trace, root.trace);
    }
}
