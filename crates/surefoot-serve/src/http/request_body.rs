//! Reads the body of a request.
//!
//! All bodies that are in memory at the same time share a limit of bytes, so that many of them
//! can't take the memory that the model needs. Small bodies have a limit of their own: a few
//! clients that send large bodies slowly keep only each other waiting. A body takes its part of the
//! limit as it arrives ([`body_room`](super::body_room)).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;

use super::answer_identity::AnswerIdentity;
use super::body_room::{BodyRoom, HeldRoom, NoRoom};
use super::error::ApiError;
use super::request_log::RequestRecord;
use super::{App, Working};

/// The bytes of large bodies that are in memory at once, or as many as the limit for one allows.
const LARGE_TOGETHER: usize = 8 << 20;
/// The bytes of small ones.
const SMALL_TOGETHER: usize = 4 << 20;
/// A body up to this size is small.
const SMALL: usize = 64 << 10;
/// What has to come of a large one before it takes the room of one.
const BEGINNING: usize = 8 << 10;
/// How long a client may take to send one.
const READING: Duration = Duration::from_secs(30);

/// Room for the bodies that are read.
#[derive(Debug)]
pub(super) struct Bodies {
    small: Arc<BodyRoom>,
    large: Arc<BodyRoom>,
    /// The largest body.
    most: usize,
    /// How long a body may wait for room.
    wait: Duration,
}

impl Bodies {
    /// Room for bodies of at most `most` bytes, for which they wait at most for `wait`.
    pub(super) fn new(most: usize, wait: Duration) -> Self {
        Self {
            small: BodyRoom::new(SMALL_TOGETHER, READING),
            large: BodyRoom::new(LARGE_TOGETHER.max(most), READING),
            most,
            wait,
        }
    }

    /// The room in which a body begins: among the small ones, until more than the beginning of a large one has come.
    fn begin(&self, told: Option<usize>) -> HeldRoom {
        self.small.begin(match told {
            Some(size) if size > SMALL => BEGINNING,
            Some(size) => size,
            None => SMALL.min(self.most),
        })
    }
}

/// A request that has been read whole.
pub(super) struct RequestBody {
    pub(super) body: Vec<u8>,
    /// Held for as long as the body or what was read from it is in memory.
    pub(super) room: HeldRoom,
    /// From now on it has to be answered.
    pub(super) working: Working,
}

impl FromRequest<Arc<App>> for RequestBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let (body, room) = read_json(&app.bodies, &parts.headers, body).await?;
        let record = parts.extensions.get::<Arc<RequestRecord>>().cloned();
        let identity = AnswerIdentity::of_request(&parts.headers, || app.number());
        Ok(Self { body, room, working: app.working(record, identity) })
    }
}

/// Reads a body of JSON into the room that it has.
pub(super) async fn read_json(
    bodies: &Bodies,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Vec<u8>, HeldRoom), ApiError> {
    if !is_json(headers) {
        return Err(ApiError::not_json());
    }
    let told = told_size(headers);
    if told.is_some_and(|size| size > bodies.most) {
        return Err(ApiError::too_large(bodies.most));
    }
    read_to_end(bodies, body, told).await.map_err(|refusal| match refusal {
        Refusal::NoRoom(NoRoom::GaveWay) => ApiError::gave_way(),
        Refusal::NoRoom(NoRoom::Full) => {
            ApiError::unavailable("other requests take the memory for large ones").code("busy")
        }
        Refusal::Late => ApiError::slow(READING),
        Refusal::Broken => ApiError::invalid("the request could not be read to its end"),
        Refusal::TooLarge => ApiError::too_large(bodies.most),
    })
}

/// Why a body was not read.
enum Refusal {
    NoRoom(NoRoom),
    Late,
    Broken,
    TooLarge,
}

impl From<NoRoom> for Refusal {
    fn from(problem: NoRoom) -> Self {
        Self::NoRoom(problem)
    }
}

/// Reads a body into one buffer; collecting its frames first would hold it twice.
async fn read_to_end(
    bodies: &Bodies,
    mut body: Body,
    told: Option<usize>,
) -> Result<(Vec<u8>, HeldRoom), Refusal> {
    let mut room = bodies.begin(told);
    let mut bytes = Vec::new();
    loop {
        let frame = match room.read(body.frame()).await?.map_err(|_| Refusal::Late)? {
            Some(frame) => frame.map_err(|_| Refusal::Broken)?,
            None => break,
        };
        let Ok(data) = frame.into_data() else { continue };
        let size = bytes.len() + data.len();
        if size > bodies.most {
            return Err(Refusal::TooLarge);
        }
        if size > room.most() {
            let larger = bodies.large.begin(told.unwrap_or(bodies.most)).after(&room);
            larger.hold(size, bodies.wait).await?;
            room = larger;
        } else {
            room.hold(size, bodies.wait).await?;
        }
        if size > bytes.capacity() && size > SMALL {
            // A body that comes this far comes to its end as a rule.
            bytes.reserve_exact(told.unwrap_or(2 * size).min(bodies.most) - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    room.is_whole();
    Ok((bytes, room))
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
