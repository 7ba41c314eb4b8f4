//! Reading what a client posts.
//!
//! Bodies that are read at once share a limit of bytes, so that many of them can't take the memory
//! that a model needs. Small ones have a share of their own: a few clients that send large ones
//! slowly keep only each other waiting.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::fields::Fields;
use super::{App, Working};

/// The bytes of large bodies that are read at once, or as many as the limit for one allows.
const LARGE_TOGETHER: usize = 16 << 20;
/// The bytes of small ones.
const SMALL_TOGETHER: usize = 4 << 20;
/// A body up to this size is small.
const SMALL: usize = 64 << 10;
/// How long a client may take to send one.
const READING: Duration = Duration::from_secs(30);

/// Room for the bodies that are read, in KiB.
pub(super) struct Bodies {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Bodies {
    /// Room for bodies of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        let semaphore = |bytes| Arc::new(Semaphore::new(kib(bytes) as usize));
        Self { small: semaphore(SMALL_TOGETHER), large: semaphore(LARGE_TOGETHER.max(most)) }
    }

    /// Waits for room for a body of so many bytes.
    async fn room(&self, size: usize) -> Option<OwnedSemaphorePermit> {
        let semaphore = if size <= SMALL { &self.small } else { &self.large };
        // Neither is ever closed.
        Arc::clone(semaphore).acquire_many_owned(kib(size)).await.ok()
    }
}

/// The fields of a request that has been read whole.
pub(super) struct Posted {
    pub(super) fields: Fields,
    /// What the fields take, until they are used up.
    pub(super) room: Option<OwnedSemaphorePermit>,
    /// From now on it has to be answered.
    pub(super) working: Working,
}

impl FromRequest<Arc<App>> for Posted {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let most = app.settings.max_body;
        if !is_json(request.headers()) {
            return Err(ApiError::not_json());
        }
        let size = told_size(request.headers()).unwrap_or(most);
        if size > most {
            return Err(ApiError::too_large(most));
        }
        let room = app.bodies.room(size).await;
        let body = tokio::time::timeout(READING, Bytes::from_request(request, app)).await;
        let body =
            body.map_err(|_| ApiError::slow(READING))?.map_err(|rejection| {
                match rejection.status() {
                    StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(most),
                    _ => ApiError::invalid("the request could not be read to its end"),
                }
            })?;
        let working = app.working();
        Ok(Self { fields: Fields::read(&body)?, room, working })
    }
}

/// Pages of other sites can make a browser post anything but JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("").split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn told_size(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3)
}
