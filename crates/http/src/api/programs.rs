//! The forwarding program of a switch, and its maps. `forwarding` of the switch loads one.

use axum::extract::State;
use protocol::{
    Page, ProgramEntry, ProgramEntryRef, ProgramEntrySet, ProgramInfo, ProgramMapQuery,
    ProgramRequest, Request, SwitchRef,
};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Shared};
use crate::extract::{JsonBody, Parameters};

/// Operations on forwarding programs.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(entries))
        .routes(routes!(entry, set, delete))
}

/// Shows the forwarding program of a switch, with its maps.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/program", tag = "switches", operation_id = "show_program",
    params(("switch" = String, Path)), responses((status = 200, body = ProgramInfo))
)]
async fn show(State(api): State<Shared>, Parameters(switch): Parameters<SwitchRef>) -> Answer {
    api.answer(Request::Program(ProgramRequest::Show(switch))).await
}

/// Lists the entries of a map.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/program/maps/{map}", tag = "switches",
    operation_id = "list_map",
    params(("switch" = String, Path), ("map" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<ProgramEntry>))
)]
async fn entries(
    State(api): State<Shared>,
    Parameters(map): Parameters<ProgramMapQuery>,
) -> Answer {
    api.answer(Request::Program(ProgramRequest::MapList(map))).await
}

/// Reads an entry of a map; of an `lpm` map, that of the longest prefix.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/program/maps/{map}/{key}", tag = "switches",
    operation_id = "show_map_entry",
    params(("switch" = String, Path), ("map" = String, Path), ("key" = String, Path)),
    responses((status = 200, body = ProgramEntry))
)]
async fn entry(
    State(api): State<Shared>,
    Parameters(entry): Parameters<ProgramEntryRef>,
) -> Answer {
    api.answer(Request::Program(ProgramRequest::MapGet(entry))).await
}

/// What an entry is to say.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MapValue {
    /// The value, as listings show it.
    value: String,
}

/// Sets an entry of a map, now and whenever the daemon starts.
#[utoipa::path(
    put, path = "/v1/switches/{switch}/program/maps/{map}/{key}", tag = "switches",
    operation_id = "set_map_entry",
    params(("switch" = String, Path), ("map" = String, Path), ("key" = String, Path)),
    request_body = MapValue, responses((status = 204, description = "Set"))
)]
async fn set(
    State(api): State<Shared>,
    Parameters(ProgramEntryRef { switch, map, key }): Parameters<ProgramEntryRef>,
    JsonBody(MapValue { value }): JsonBody<MapValue>,
) -> Answer {
    let entry = ProgramEntry { map, key, value };
    api.answer(Request::Program(ProgramRequest::MapSet(ProgramEntrySet { switch, entry }))).await
}

/// Deletes an entry of a map.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/program/maps/{map}/{key}", tag = "switches",
    operation_id = "delete_map_entry",
    params(("switch" = String, Path), ("map" = String, Path), ("key" = String, Path)),
    responses((status = 204, description = "Deleted"))
)]
async fn delete(
    State(api): State<Shared>,
    Parameters(entry): Parameters<ProgramEntryRef>,
) -> Answer {
    api.answer(Request::Program(ProgramRequest::MapDel(entry))).await
}
