"""The Jinja macros that html.py fills in. Styles stand in the elements, as no page around them is ours."""

MACROS = """
{% macro framed(content) %}
<div style="width:0;min-width:100%;overflow-x:hidden">
  <div style="max-width:820px;line-height:20px">{{ content|safe }}</div>
</div>
{% endmacro %}


{% macro plan_page(plan, pieces, quota, details) %}
{% set option, prediction = plan.chosen, plan.chosen.prediction %}
<div style="font-size:15px">
  <b>{{ plan.run }} fits on {{ plan.cards ~ " x " if plan.cards > 1 }}{{ plan.card }}</b>: at the peak
  {{ prediction.peak_bytes|gib }} of the {{ plan.usable_bytes|gib }} GiB that PyTorch can have
  ({{ "{:.0%}".format(prediction.share) }})
</div>
<div style="font-size:12px;opacity:.75">
  {{ plan.parameters|weights }} parameters, {{ plan.precision }},
  effective batch {{ plan.effective_batch }}; PyTorch's allocator reserves {{ prediction.reserved_bytes|gib }} GiB,
  the driver shows {{ driver(prediction) }} GiB
</div>
{{ bar(plan, pieces) }}
{# five figures stand in a row; where there is no room for it three above two, and none stands alone #}
{% set columns = "display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr))" %}
<div style="margin:8px 0 2px 0;display:flex;flex-wrap:wrap">
  <div style="flex:3 1 450px;{{ columns }}">
  {% set dealt = plan.cards * option.passes * option.micro_batch == plan.effective_batch %}
  {% set each = (option.passes ~ " passes") if option.passes > 1 else "1 pass" %}
  {% set batch = plan.effective_batch ~ " = " ~ (plan.cards ~ " cards x " if plan.cards > 1) ~ each ~ " x " ~
    option.micro_batch %}
  {{ figure(option.micro_batch, "micro-batch", batch if dealt else option.passes ~ " passes on each card") }}
  {{ figure(option.recomputed ~ " of " ~ plan.layers, "layers recomputed",
            "%.2f x the compute"|format(option.relative_compute)) }}
  {% set slow, fast = (1 / option.step_seconds[1])|computed, (1 / option.step_seconds[0])|computed %}
  {{ figure((1 / option.expected_seconds)|computed, "steps a second", "expected; " ~ slow ~ " to " ~ fast) }}
  </div>
  {% if plan.max_steps %}
  <div style="flex:2 1 300px;{{ columns }}">
    {{ figure(plan.seconds(plan.max_steps)|duration, "GPU time", "{:,} steps".format(plan.max_steps)) }}
    {% if quota %}
      {% set share, sessions = quota(plan.max_steps) %}
      {{ figure(share, "of a week's quota"|safe, sessions ~ ", of " ~ week ~ " GPU hours") }}
    {% endif %}
  </div>
  {% endif %}
</div>
{{ table_of_options(plan) if plan.options|length > 1 }}
{% for sentence in notices(plan) %}<div style="font-size:12px">{{ sentence }}</div>{% endfor %}
{{ where(details) if details }}
<details style="margin-top:6px;font-size:12px">
  <summary>Runs of other lengths, and what no prediction sees</summary>
  {% call(number) table(["steps", "GPU time"] + (["of a week's quota", "sessions"] if quota else []), lengths) %}
    {{ cell("{:,}".format(number)) }}{{ cell(plan.seconds(number)|duration) }}
    {% if quota %}{% for text in quota(number) %}{{ cell(text) }}{% endfor %}{% endif %}
  {% endcall %}
  <div>Times come from a roofline, without evaluation, loading and saving; the smoke test of a training notebook
    measures the true speed.</div>
  {% for sentence in prediction.unseen %}<div>Not seen: {{ sentence }}</div>{% endfor %}
</details>
{% endmacro %}


{% macro where(details) %}
<details style="margin-top:6px;font-size:12px">
  <summary>Where it goes: layer by layer, and who is alive at the peak</summary>
  <img alt="memory in the course of a step, and by layer" style="width:100%"
       src="data:image/png;base64,{{ details.picture }}">
  {% call(row) table(details.layers[0], details.layers[1:]) %}
    {% for text in row %}{{ cell(text, style=";text-align:left" if loop.first) }}{% endfor %}
  {% endcall %}
  {% call(row) table(details.alive[0], details.alive[1:]) %}
    {% for text in row %}{{ cell(text, style=";text-align:left" if loop.index < 4) }}{% endfor %}
  {% endcall %}
</details>
{% endmacro %}


{# The memory of the card from left to right; `pieces` are (name, bytes, colour, colour of the text). #}
{% macro bar(plan, pieces) %}
{% set total = plan.usable_bytes + plan.set_aside_bytes %}
{% set limit = 100 * (plan.set_aside_bytes + plan.limit_bytes) / total %}
<div style="position:relative;padding-top:18px;margin:6px 0 4px 0">
  <div style="position:absolute;top:0;right:{{ "%.2f"|format(100 - limit) }}%;font-size:11px;padding-right:3px">
    a plan may use {{ fits }}: {{ plan.limit_bytes|gib }} GiB</div>
  <div style="height:34px;border:1px solid #888;border-radius:3px;overflow:hidden;background:#88888820" role="img"
       aria-label="{% for name, size, _, _ in pieces %}{{ name }} {{ size|gib }}{{ ", " if not loop.last }}{% endfor %}
 of {{ total|gib }} GiB">
    {% for name, size, colour, text in pieces %}
      <div title="{{ name }}: {{ size|gib }} GiB" style="float:left;box-sizing:border-box;height:34px;line-height:34px;
           width:{{ "%.3f"|format(100 * size / total) }}%;background:{{ colour }};color:{{ text }};text-align:center;
           font-size:12px;border-right:1px solid #fff;overflow:hidden">
        {#- a piece below 5.5 % of the width has no room for its number -#}
        {{ size|gib if size / total >= 0.055 }}</div>
    {% endfor %}
  </div>
  <div style="position:absolute;top:2px;bottom:-3px;left:{{ "%.2f"|format(limit) }}%;border-left:2px dashed {{ warning
    }}"></div>
</div>
<div style="font-size:12px">
  {% for name, size, colour, _ in pieces %}{{ legend(colour, name ~ " " ~ size|gib ~ " GiB") }}{% endfor %}
  {% set free = plan.usable_bytes - plan.chosen.prediction.peak_bytes %}
  {{ legend("#88888820", "free " ~ free|gib ~ " of the card's " ~ total|gib ~ " GiB") }}
</div>
{% endmacro %}


{% macro legend(colour, text) %}
<span style="display:inline-block;margin-right:12px"><span style="display:inline-block;width:11px;height:11px;
  margin-right:4px;background:{{ colour }};border:1px solid #888"></span>{{ text }}</span>
{% endmacro %}


{% macro figure(value, name, detail) %}
<div style="margin:0 12px 6px 0">
  <div style="font-size:20px;line-height:26px">{{ value }}</div>
  <div style="font-size:12px;line-height:15px">{{ name }}</div>
  <div style="font-size:11px;line-height:14px;opacity:.7">{{ detail }}</div>
</div>
{% endmacro %}


{% macro table_of_options(plan) %}
{% set head = ["", "micro-batch", "passes", "recomputed", "peak GiB", "reserved", "driver", "compute", "steps/s"] %}
{% call(option) table(head + (["GPU time"] if plan.max_steps else []), plan.options, plan.chosen) %}
  {{ cell("recommended" if option == plan.chosen else "fits" if option.fits else "does not fit") }}
  {{ cell(option.micro_batch) }}{{ cell(option.passes) }}{{ cell(option.recomputed ~ " of " ~ plan.layers) }}
  {{ cell(option.prediction.peak_bytes|gib) }}{{ cell(option.prediction.reserved_bytes|gib) }}
  {{ cell(driver(option.prediction)) }}{{ cell("%.2f x"|format(option.relative_compute)) }}
  {{ cell((1 / option.expected_seconds)|computed) }}
  {% if plan.max_steps %}{{ cell(plan.seconds(plan.max_steps, option)|duration) }}{% endif %}
{% endcall %}
{% endmacro %}


{# A table with a row for each item, whose cells the caller writes; the row of `chosen` is bold. #}
{% macro table(head, items, chosen=none) %}
<div style="overflow-x:auto">
  <table style="border-collapse:collapse;font-size:12px;margin:4px 0;line-height:18px">
    <thead><tr>
      {% for name in head %}{{ cell(name, "th", ";font-weight:normal;opacity:.7") }}{% endfor %}
    </tr></thead>
    <tbody>
      {% for item in items %}
        <tr style="font-weight:{{ "bold" if item == chosen else "normal" }}">{{ caller(item) }}</tr>
      {% endfor %}
    </tbody>
  </table>
</div>
{% endmacro %}


{% macro cell(text, tag="td", style="") %}
<{{ tag }} style="padding:1px 10px 1px 0;text-align:right;white-space:nowrap{{ style }}">{{ text }}</{{ tag }}>
{% endmacro %}


{% macro gauge(readings) %}
{% for reading in readings %}
  <div style="font-size:12px;line-height:16px">{{ reading.name }}: {{ reading.used|gib }} of {{ reading.total|gib }} GiB
    in use <span style="opacity:.7">({{ reading.detail }})</span></div>
  <div style="height:8px;border:1px solid #888;border-radius:2px;background:#88888820;margin-bottom:4px">
    <div style="height:8px;width:{{ "%.1f"|format(100 * reading.share) }}%;background:#0072B2"></div>
  </div>
{% endfor %}
{% endmacro %}


{% macro refusal(sentence) %}
<div role="alert" style="border-left:4px solid {{ warning }};padding:6px 10px;white-space:pre-wrap">{{ sentence }}</div>
{% endmacro %}


{% macro computing(text) %}
<style>@keyframes trainbook-turn{to{transform:rotate(360deg)}}</style>
<div style="font-size:12px;line-height:20px"><span style="display:inline-block;width:10px;height:10px;
  margin:0 6px -2px 0;border:2px solid #888;border-top-color:transparent;border-radius:50%;
  animation:trainbook-turn 1s linear infinite"></span>{{ text }}</div>
{% endmacro %}
"""
