//! Keeps freed memory in the process.

/// Makes the C library keep freed blocks of some megabytes, where it is glibc; elsewhere it does
/// nothing. To be called once, before a long run.
///
/// A training step frees and takes the same large blocks again and again. glibc first takes each
/// from the kernel and gives it back when it is freed, and every page is then zeroed and mapped
/// anew: a tenth of a step. It stops doing so for blocks up to the largest that it has ever seen
/// freed, and at most 32 MiB; so one such block is shown to it, which takes no memory.
pub fn keep_freed_memory() {
    const LARGEST: usize = (32 << 20) - (64 << 10);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST)));
}
