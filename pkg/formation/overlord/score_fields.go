package overlord

import (
	"math"
	"slices"
	"strings"
	"sync"
)

// fieldWords are the everyday words of common fields of work. An author writes
// that an agent "suggests recipes"; people ask about pancakes. An agent whose
// own words lie in a field is also found by the other words of that field.
// A word may stand in several fields; one that is everywhere says nothing and
// stands nowhere. Endings don't matter, see stem.
const fieldWords = `
billing: invoice bill charge payment pay paid refund reimburse subscription subscribe plan price pricing cost fee amount owe due overdue receipt credit debit card bank transfer transaction checkout voucher coupon discount promo bonus tax vat account balance cancel renewal renew membership trial upgrade downgrade premium tier seat purchase order quote installment instalment money dollar euro pound cent cash donate paypal wallet iban settle overcharge reminder dunning unsubscribe cheap expensive monthly yearly annual
support: computer laptop pc notebook desktop tablet phone smartphone printer scanner screen monitor display keyboard mouse touchpad headset microphone camera webcam speaker projector battery charger cable usb hdmi bluetooth wifi wlan router network internet vpn server login sign password account lock unlock reset access permission install uninstall update upgrade restart reboot boot driver software hardware app application browser outlook teams zoom excel windows macos linux android iphone ios backup restore recover virus malware phishing popup error crash freeze hang slow broken fix connect connection disconnect sync folder drive disk storage memory icon sound audio video black blue paper toner jam device attachment email calendar certificate code authentication setup configure troubleshoot ticket
travel: trip travel journey flight fly plane airline airport gate terminal lounge boarding train rail railway station bus ferry cruise ship taxi rental rent drive road toll hotel hostel guesthouse room apartment stay accommodation bed breakfast checkin checkout book booking reserve reservation ticket seat layover connection departure arrival depart arrive return luggage baggage suitcase bag passport visa border customs vaccination tourist tourism tour guide museum sight sightseeing beach island mountain lake city town country abroad foreign vacation holiday weekend itinerary destination map currency plug adapter excursion hike camping resort pilgrimage north south europe asia africa america paris london rome berlin madrid barcelona lisbon vienna amsterdam prague venice milan athens dublin edinburgh stockholm oslo copenhagen zurich munich istanbul dubai tokyo kyoto beijing bangkok singapore bali delhi sydney york boston chicago toronto spain france italy germany greece portugal england scotland ireland iceland norway sweden finland poland austria switzerland croatia turkey egypt morocco kenya usa canada mexico cuba brazil peru argentina japan china india thailand vietnam australia zealand alps mediterranean
food: cook cooking bake baking recipe meal food dish menu breakfast brunch lunch dinner supper snack starter appetizer dessert kitchen oven stove grill fry frying pan pot boil roast steam simmer marinate chop peel slice stir whisk knead dough bread sourdough yeast cake pie cookie muffin pancake pastry chocolate sugar sweet salt salty pepper spice herb season flavor flavour taste tasty sauce gravy soup stew broth curry salad dressing vinegar oil butter cream milk cheese yoghurt yogurt egg flour rice pasta noodle spaghetti pizza potato tomato onion garlic carrot mushroom pumpkin lentil bean chickpea pea spinach broccoli cabbage apple banana lemon orange berry strawberry fruit vegetable meat beef steak pork lamb chicken turkey fish salmon trout seafood shrimp tofu vegan vegetarian gluten nut almond honey jam wine beer cocktail coffee tea juice drink ingredient gram cup tablespoon teaspoon serving portion leftover freeze frozen fridge freezer fresh ripe raw crispy tender wok knife chef cuisine italian thai indian mexican
fitness: fitness exercise workout train training trainer coach gym sport sports athlete run running jog jogging sprint marathon race triathlon walk walking hike step cycle cycling bike swim swimming row rowing climb climbing yoga pilates stretch stretching mobility flexible warm cooldown squat deadlift bench press pushup pullup plank situp lunge dumbbell barbell kettlebell treadmill weight lift strength strong muscle core abs belly leg knee hip calf shin ankle shoulder elbow wrist back spine neck joint posture cardio endurance stamina heart pulse rate breath breathe interval rep set rest recover recovery sore injury injured pain hurt ache sprain twist fat burn calorie lose gain mass bmi protein hydration sleep motivation beginner session tennis football soccer basketball boxing toe foot feet blister
law: law legal lawyer attorney solicitor court judge sue lawsuit trial appeal claim liable liability damage damages compensation contract agreement clause term sign signature binding valid invalid void enforce enforceable breach terminate termination notice deadline statute limitation landlord tenant lease rent evict eviction deposit neighbour neighbor property owner inherit inheritance will testament heir estate divorce custody marriage prenup adoption guardian police arrest fine penalty crime criminal fraud theft witness evidence prove consent privacy gdpr data protection cookie copyright trademark patent licence license intellectual infringe copy warranty guarantee defect faulty seller buyer consumer withdrawal rights right duty obligation permit permitted allowed forbidden prohibited illegal lawful allow regulation authority jurisdiction arbitration mediation insurance nda confidentiality disclosure waiver imprint defamation debt bankrupt bankruptcy insolvency company found limited shareholder power attorney fault responsible object objection summons
hr: employee employer employment staff colleague coworker boss manager supervisor lead team hr personnel job position role vacancy hire hiring recruit recruiting applicant candidate interview onboarding newcomer probation salary wage pay payroll payslip raise bonus overtime hours timesheet shift leave vacation holiday absence sick sickness ill doctor maternity paternity parental pregnant baby sabbatical remote office homeoffice pension retirement benefit insurance allowance appraisal review feedback promotion career training course training resign resignation quit notice dismissal fired badge policy dress burnout bullying harassment workload wedding married relocation commute workday headquarters certificate refer referral newborn workplace
code: code coding program programming programmer developer software function method class object interface variable constant pointer array list map struct enum string integer float boolean loop recursion recursive algorithm binary sort compile compiler build linker runtime exception error trace stack heap null undefined segfault debug debugger bug test testing unit mock refactor lint git commit branch merge rebase pull push repository repo github gitlab docker dockerfile container kubernetes deploy pipeline ci api rest endpoint http json xml yaml webhook request response header token backend frontend html css div javascript typescript node npm react vue angular python java kotlin swift golang rust ruby php csharp bash shell script cli flag library package module dependency import framework thread goroutine async await mutex deadlock race concurrency memory leak cache regex regexp parse parser serialize syntax type generic inheritance singleton pattern complexity line snippet implement
data: data dataset database sql query table column row join select group count sum average mean median percentile quantile deviation variance distribution histogram chart graph plot pie bar curve heatmap scatter dashboard report kpi metric statistic statistics significant significance sample survey correlation correlate regression forecast predict prediction trend season seasonality growth growing grow compare comparison percentage percent share ratio rate total number figure revenue sales profit margin churn cohort retention conversion visitor click funnel segment cluster outlier missing duplicate null csv excel sheet spreadsheet pivot vlookup analyse analyze analysis analytics warehouse quarter rank ranking top region month weekday variable
language: text write writing writer letter email note sentence paragraph word phrase wording headline title slogan article blog essay story poem haiku verse rhyme speech toast summary summarise summarize shorten shorter cut rewrite rephrase reword paraphrase edit editor proofread correct correction grammar spelling spell punctuation comma semicolon dash tense passive plural synonym antonym meaning translate translation language english german french spanish italian portuguese dutch polish russian latin chinese japanese tone style polite formal informal friendly rude clumsy polish improve draft outline introduction conclusion thesis abstract application cover invitation apology condolence obituary birthday card thank greeting pronounce pronunciation expression idiom jargon press release motto quote
weather: weather forecast rain snow sun sunny wind storm cloud cloudy temperature degree celsius fahrenheit humidity hot cold warm umbrella thunder lightning fog frost ice climate hail heatwave drizzle
medicine: doctor physician nurse hospital clinic patient symptom disease illness fever cough flu cold headache migraine pain infection allergy rash medicine medication drug pill dose prescription pharmacy vaccine vaccination blood pressure diabetes cancer heart lung stomach skin surgery therapy diagnosis treatment x-ray pregnancy dentist tooth teeth eye ear
finance: stock share bond fund etf invest investment investor portfolio dividend interest rate loan mortgage credit savings saving bank broker inflation currency exchange crypto bitcoin asset capital equity retirement pension tax budget expense income profit loss balance accounting ledger audit cashflow insurance yield
sales: customer client lead prospect deal offer quote proposal pitch demo close pipeline crm discount negotiate contract upsell account territory quota competitor sell selling sale reseller partner
marketing: campaign brand branding advertising advertisement ad audience target social media facebook instagram linkedin tiktok post content seo keyword newsletter landing conversion click influencer logo slogan launch press event banner reach engagement
education: learn learning teach teacher student pupil school university college class course lesson homework exam test grade curriculum lecture tutor study quiz essay thesis degree semester mathematics math algebra geometry fraction equation physics chemistry biology history geography
music: music song album band singer guitar piano violin drum bass chord melody rhythm concert playlist tune note scale compose composer lyrics orchestra opera jazz rock vinyl
film: film movie series actor actress director cinema episode season watch streaming trailer oscar comedy drama thriller
books: book novel author read reader chapter library fiction poetry publisher literature bestseller
games: game play player chess opening puzzle board card console level score video team strategy dice
garden: garden plant flower tree lawn grass seed soil compost water fertilizer prune hedge weed pest balcony pot vegetable rose bloom harvest greenhouse
pets: pet dog cat puppy kitten bird hamster fish aquarium vet leash litter bark scratch feed breed collar
car: car vehicle engine motor tire tyre brake oil gear gearbox battery garage mechanic repair fuel petrol diesel electric charging mileage service inspection dashboard clutch exhaust windshield driver license
home: house home apartment flat furniture paint wall roof window door heating plumbing pipe leak faucet electrician tool drill screw renovate renovation cleaning clean laundry washing dishwasher vacuum mold mould
property: property real estate house apartment flat buy sell rent landlord tenant mortgage broker viewing lease square deposit
logistics: shipping shipment ship parcel package delivery deliver courier warehouse inventory stock tracking track carrier freight customs container pallet route dispatch supply return order
shopping: shop store product item size color colour order cart basket stock available gift delivery return exchange brand warranty review
security: security attack attacker hacker breach vulnerability exploit malware ransomware phishing firewall encryption encrypt password certificate threat incident penetration audit compliance intrusion
operations: server deploy deployment cluster kubernetes monitoring alert incident outage downtime latency log metric scaling rollback cloud aws azure infrastructure terraform load backup
science: science physics chemistry biology atom molecule energy experiment theory planet star moon galaxy universe space evolution gene cell research telescope dinosaur volcano
history: history war king queen emperor empire revolution century ancient medieval battle treaty president senate
news: news headline politics election government minister parliament party vote president policy economy journalist
events: event party wedding meeting conference calendar appointment schedule invite invitation guest venue catering reminder agenda date time
project: project task deadline milestone sprint backlog roadmap scrum agile kanban stakeholder scope planning priority estimate risk status jira
research: research source paper study evidence investigate compare find literature survey review report fact citation background market competitor
design: design designer layout logo color colour font typography icon image picture photo graphic illustration mockup wireframe figma prototype sketch ui ux
`

// fields is fieldWords by word.
type fields struct {
	names    []string
	features []string // what examples teach about a field: its name with a mark
	of       map[string][]fieldShare
}

// fieldShare is a field of a word with what the word tells about it: a word of
// many fields tells little about each.
type fieldShare struct {
	field int
	share float64
}

// allFields reads fieldWords at the first use: a formation of one agent never
// needs it.
var allFields = sync.OnceValue(func() *fields {
	f := &fields{of: make(map[string][]fieldShare, 2500)}
	for line := range strings.Lines(strings.TrimSpace(fieldWords)) {
		name, list, _ := strings.Cut(line, ":")
		n := len(f.names)
		f.names, f.features = append(f.names, name), append(f.features, markField+name)
		for _, word := range words(name + " " + list) {
			if !slices.ContainsFunc(f.of[word], func(s fieldShare) bool { return s.field == n }) {
				f.of[word] = append(f.of[word], fieldShare{field: n})
			}
		}
	}
	for _, list := range f.of {
		in := float64(len(list))
		for i := range list {
			list[i].share = math.Log(1+float64(len(f.names))/in) / in
		}
	}
	return f
})
