import { bytes } from "../format";
import { messages } from "../i18n";
import { now } from "../state/clock";
import { cachedDetail } from "../state/detail";
import type { Workspace } from "../types";
import { wasUsed } from "../workspace";
import { homeSize, LargestEntries } from "./HomeSize";
import { Time } from "./Time";

export function Facts({ workspace }: { workspace: Workspace }) {
  const text = messages.value.detail;
  const detail = cachedDetail(workspace.id);
  const largest = detail?.home?.largest ?? [];
  const archive = detail?.archive ?? null;
  const kept = workspace.keep_until !== null && Date.parse(workspace.keep_until) > now.value;
  return (
    <dl class="facts">
      <dt>{text.id}</dt>
      <dd>
        <code>{workspace.id}</code>
      </dd>
      <dt>{text.image}</dt>
      <dd>{workspace.image_ref}</dd>
      <dt>{text.created}</dt>
      <dd>
        <Time at={workspace.created_at} as="full" />
      </dd>
      {wasUsed(workspace) && (
        <>
          <dt>{text.lastUsed}</dt>
          <dd>
            <Time at={workspace.last_access_at} as="relative" />
          </dd>
        </>
      )}
      {kept && (
        <>
          <dt>{text.keptUntil}</dt>
          <dd>
            <Time at={workspace.keep_until!} as="full" />
          </dd>
        </>
      )}
      {workspace.home?.measured_at && (
        <>
          <dt>{text.home}</dt>
          <dd data-testid="home-size">{homeSize(workspace.home)}</dd>
          {largest.length > 0 && (
            <>
              <dt>{text.largest}</dt>
              <dd>
                <LargestEntries entries={largest} />
              </dd>
            </>
          )}
        </>
      )}
      <dt>{text.lastArchived}</dt>
      <dd data-testid="last-archived">
        {archive ? (
          <>
            <Time at={archive.created_at} as="full" />, {bytes(archive.bytes)}
          </>
        ) : workspace.has_archive ? (
          text.archived
        ) : (
          text.notArchived
        )}
      </dd>
    </dl>
  );
}
